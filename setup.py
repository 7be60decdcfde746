"""Metadata of the package. Tools are configured in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
[VERSION] = re.findall(r'__version__ = "(.+)"', (HERE / "megatron_sspo" / "__init__.py").read_text(encoding="utf-8"))


def library(name: str) -> str:
    """Returns the requirement of a library of packages/: its folder in a checkout, its release elsewhere."""
    folder = HERE / "packages" / name
    return f"sspo-{name} @ {folder.as_uri()}" if folder.exists() else f"sspo-{name}==0.1.0"


# The client of SGLang servers, and `megatron-sspo serve` in SGLang's own environment, which pins its Transformers.
SGLANG_CLIENT = [
    "numpy",
    "pydantic>=2.9,<3",  # checks a recipe's values by the annotations of `Run`
    "transformers",
    "safetensors",
    "rich",
    "aiohttp",
]
TRAIN = [
    *SGLANG_CLIENT,
    "megatron-core>=0.16.1,<0.20",  # 0.16.1 is the newest for Python 3.11; 0.20 has not been looked at
    "psutil",  # megatron-core's checkpoint writer fails without it
    "transformers>=5.19,<6",
    "tokenizers",
    "isal",  # CRC-32 at the speed of memory; with zlib's, a checksum costs as much as the copy it is of
    "pyarrow",
    *map(library, ["answers", "sandbox", "agents", "lab", "rehearsal"]),
    "reasoning-gym>=0.1.25",
    "matplotlib",
]

setup(
    name="megatron-sspo",
    version=VERSION,
    description="Soft Sequence Policy Optimization on stock Megatron-Core and stock SGLang",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["megatron_sspo", "megatron_sspo.*"]),
    package_data={
        "megatron_sspo": ["py.typed"],
        # links to files elsewhere in the checkout are among them; a wheel has the files
        "megatron_sspo.project": ["template/*", "template/model/*", "template/paper/*", "template/slurm/*"],
    },
    exclude_package_data={"megatron_sspo.project": ["template/*.jsonl"]},  # what rows.py has written in a checkout
    install_requires=["torch>=2.6"],  # all that the objectives need
    extras_require={
        "train": TRAIN,
        "sglang-client": SGLANG_CLIENT,
        # TRL and verl pin each their own Transformers, so each goes into an environment without `train`.
        "trl": ["trl>=1.16,<1.17"],
        "verl": ["verl==0.9.1"],
        # for the agent of that name, in any interpreter
        "verifiers": ["verifiers>=0.4,<0.5"],
        # mlflow-skinny logs to a server; a local database needs mlflow
        "tracking": ["tensorboard", "wandb", "mlflow-skinny", "swanlab>=0.10", "trackio"],
        "hub": ["datasets"],
        # in an environment of its own, make install-nemo-run; newer leptonai lacks the module that nemo-run imports
        "nemo_run": ["nemo-run==0.11.1", "leptonai<0.28"],
        "dev": [
            *TRAIN,
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "filelock",
            "hypothesis",
            "ruff==0.17.6",
            "pyright==1.1.414",
            "datasets",
            "peft",  # the judge of adapters
            "setuptools>=77",  # builds the wheel that a test installs, with the next two
            "build",
            "twine",
        ],
        # In an environment of its own, make install-docs. The build is strict, so another version may find new faults:
        # the pins are the releases that the pages were built with. MkDocs 2 has neither plugins nor hooks.
        # Ruff formats signatures.
        "docs": [
            "mkdocs==1.6.1",
            "mkdocs-material==9.8.1",
            "mkdocstrings==1.0.8",
            "mkdocstrings-python==2.0.11",
            "ruff==0.17.6",
        ],
    },
    entry_points={"console_scripts": ["megatron-sspo=megatron_sspo.__main__:main"]},
)
