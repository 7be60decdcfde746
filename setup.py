"""Metadata of the package. Tools are configured in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="megatron-sspo",
    version="0.1.0",
    description="Soft Sequence Policy Optimization on stock Megatron-Core and stock SGLang",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["megatron_sspo", "megatron_sspo.*"]),
    package_data={"megatron_sspo.plots.live": ["page/*"], "megatron_sspo.rehearsal": ["models/*.json"]},
    install_requires=[
        "torch>=2.6",
        "megatron-core>=0.16.1,<0.20",  # 0.16.1 is the newest for Python 3.11; 0.20 has not been looked at
        "psutil",  # megatron-core's checkpoint writer dies without it, and the run hangs
        "numpy",
        "pydantic>=2.9,<3",  # checks a recipe's values by the annotations of `Run`
        "transformers>=5.19,<6",
        "tokenizers",
        "safetensors",
        "isal",  # CRC-32 at the speed of memory; with zlib's, a checksum costs as much as the copy it is of
        "pyarrow",
        "math-verify==0.9.0",  # what the reward tests were written against
        "antlr4-python3-runtime==4.13.2",  # math-verify takes whatever is there, and its grammar wants this one
        "reasoning-gym>=0.1.25",
        "matplotlib",
        "scipy>=1.15",  # statistics of sweeps; imported by table and plot alone
        "rich",
        "aiohttp",  # to the rollout servers, and for the live page
    ],
    extras_require={
        "dev": [
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "filelock",
            "hypothesis",
            "ruff==0.17.6",
            "pyright==1.1.414",
            "datasets",
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
        "hub": ["datasets"],
        # in an environment of its own, make install-nemo-run; newer leptonai lacks the module that nemo-run imports
        "nemo_run": ["nemo-run==0.11.1", "leptonai<0.28"],
        "tracking": ["tensorboard", "wandb"],
    },
    entry_points={"console_scripts": ["megatron-sspo=megatron_sspo.__main__:main"]},
)
