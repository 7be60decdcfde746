"""Compares conversion with `cp` of the same files, with loading and saving everything, and with mbridge's I/O.

    python benchmarks/convert.py --folder DIR            # 5 GB, and room for two copies of it

The first call makes a checkpoint in DIR with the shapes of Qwen3-30B-A3B and three of its 48 layers. Every variant runs
in its own process, in turn. Seconds are wall-clock time of the conversion only, with the files in the page cache; ours
includes checksums and waiting for the disk, cp's does not. MB is the peak of resident memory above that of an
interpreter that has imported torch. `mbridge` measures only its reader and writer of safetensors and the concatenation
between them; install it with `pip install --no-deps mbridge==0.15.1`, otherwise it is left out.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from side_by_side import MEGABYTE, kilobytes, print_table, run_all

from megatron_sspo.weights.families import qwen3_moe

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}


def make_checkpoint(folder: Path, num_layers: int) -> None:
    """Writes random bits in the shapes of the model, in files of at most 2 GB as in published checkpoints."""
    config = {**CONFIG, "num_hidden_layers": num_layers}
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    pending: dict[str, torch.Tensor] = {}
    files: list[list[str]] = []

    def flush() -> None:
        files.append(list(pending))
        save_file(pending, folder / f"{len(files)}.safetensors", metadata={"format": "pt"})
        pending.clear()

    for row in qwen3_moe.family.rows(config, config["vocab_size"]):
        for name, shape in zip(row.hf, row.hf_shapes, strict=True):
            bits = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=generator)
            pending[name] = bits.view(torch.bfloat16)
        if sum(tensor.nbytes for tensor in pending.values()) > 1.4e9:
            flush()
    flush()
    weight_map = {}
    for number, names in enumerate(files, start=1):
        file = f"model-{number:05}-of-{len(files):05}.safetensors"
        (folder / f"{number}.safetensors").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8"
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def cp(source: Path, destination: Path) -> None:
    subprocess.run(["cp", "-r", source, destination], check=True)


def ours(source: Path, destination: Path) -> None:
    from megatron_sspo.weights.conversion.convert import convert

    convert(source, destination)


def rows_of(source: Path) -> list[Any]:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    return qwen3_moe.family.rows(config, config["vocab_size"])


def everything_to_megatron(source: Path, destination: Path) -> None:
    """Loads the whole model, assembles Megatron's parameters, and saves them."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        tensors |= load_file(file)

    def read(name: str, dim: int, start: int, stop: int) -> torch.Tensor:
        return tensors[name].narrow(dim, start, stop - start)

    torch.save({row.name: row.to_megatron(read, 0, 1) for row in rows_of(source)}, destination)


def everything_to_hf(source: Path, destination: Path) -> None:
    """Loads the file of `everything_to_megatron`, splits the parameters into Hugging Face tensors, and saves them."""
    destination.mkdir()
    parameters = torch.load(source.with_name("everything.pt"))
    tensors: dict[str, torch.Tensor] = {}
    for row in rows_of(source):
        tensors |= {name: tensor.contiguous() for name, tensor in row.to_hf([parameters[row.name]]).items()}
    save_file(tensors, destination / "model.safetensors")


def mbridge_io(folder: Path) -> Any:
    """Loads mbridge's module for safetensors without the rest of the package, which needs CUDA libraries."""
    package = importlib.util.find_spec("mbridge")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("mbridge is not installed")
    path = Path(package.submodule_search_locations[0]) / "core" / "safetensor_io.py"
    spec = importlib.util.spec_from_file_location("safetensor_io", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SafeTensorIO(str(folder))


def mbridge_to_megatron(source: Path, destination: Path) -> None:
    reader = mbridge_io(source)
    parameters = {}
    for row in rows_of(source):
        found = reader.load_some_hf_weight(list(row.hf))
        parameters[row.name] = row.to_megatron(lambda n, d, a, b, f=found: f[n].narrow(d, a, b - a), 0, 1)
    torch.save(parameters, destination)


def mbridge_to_hf(source: Path, destination: Path) -> None:
    destination.mkdir()
    parameters = torch.load(source.with_name("everything.pt"), mmap=True)
    stream = (pair for row in rows_of(source) for pair in row.to_hf([parameters[row.name]]).items())
    writer = mbridge_io(source.with_name("hf"))
    writer.save_hf_weight(((name, tensor.contiguous()) for name, tensor in stream), str(destination), [])


VARIANTS: dict[str, dict[str, Callable[[Path, Path], None]]] = {
    "hf": {"cp": cp, "ours": ours, "load all, save all": everything_to_megatron, "mbridge": mbridge_to_megatron},
    "megatron": {"cp": cp, "ours": ours, "load all, save all": everything_to_hf, "mbridge": mbridge_to_hf},
}


def measure(work: Callable[[Path, Path], None], source: Path, destination: Path) -> dict[str, float]:
    """Returns wall-clock seconds, and the peak of resident memory above its value at the start."""
    _remove(destination)
    os.sync()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak to the current value
    before = kilobytes("VmRSS")
    start = time.perf_counter()
    work(source, destination)
    seconds = time.perf_counter() - start
    peak = (kilobytes("VmHWM") - before) * 1024 / MEGABYTE
    _remove(destination)
    return {"seconds": seconds, "megabytes": peak}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark_convert"), help="default: %(default)s")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    options = parser.parse_args()
    source = options.folder / (options.source or "hf")
    if options.variant:
        work = VARIANTS[options.source][options.variant]
        print(json.dumps(measure(work, source, options.folder / "out")))
        return
    if not source.exists():
        print(f"making a checkpoint of {options.layers} layers in {source}", file=sys.stderr)
        make_checkpoint(source, options.layers)
    if not (options.folder / "megatron").exists():
        ours(source, options.folder / "megatron")
        everything_to_megatron(source, options.folder / "everything.pt")
    for kind, title in (("hf", "Hugging Face -> Megatron"), ("megatron", "Megatron -> Hugging Face")):
        arguments = ["--folder", str(options.folder), "--source", kind]
        results = run_all(__file__, list(VARIANTS[kind]), arguments, rounds=options.rounds)
        size = sum(file.stat().st_size for file in source.glob("*.safetensors")) / 1e9
        print_table(f"{title}, {size:.2f} GB", results, "cp")


if __name__ == "__main__":
    main()
