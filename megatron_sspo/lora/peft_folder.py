"""Adapters as PEFT writes and loads them: adapter_config.json and adapter_model.safetensors."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.files.removing import remove
from megatron_sspo.run import LoRA
from megatron_sspo.weights.lora import Factors
from megatron_sspo.weights.table import Read

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}


def adapter_config(lora: LoRA, factors: Sequence[Factors], base: str) -> dict[str, Any]:
    """Returns the content of adapter_config.json. `target_modules` are names such as q_proj and experts' up_proj."""
    modules = {name.split(".")[-2] for pair in factors for name in pair.weight.hf}
    return {
        **_PLAIN,
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(modules),
        "inference_mode": True,
    }


def write_peft_folder(path: Path, tensors: Iterable[tuple[str, Tensor]], config: Mapping[str, Any]) -> None:
    """Writes an adapter's folder, under another name until it is complete."""
    temporary = path.with_name(f".{path.name}-incomplete")
    remove(temporary)
    temporary.mkdir(parents=True)
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors}, temporary / WEIGHTS, {"format": "pt"})
    (temporary / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
    remove(path)  # of an earlier attempt at the run
    temporary.rename(path)


def read_peft_folder(path: Path, lora: LoRA, factors: Sequence[Factors]) -> Read:
    """Returns a reader of the factors of a PEFT folder.

    Raises:
        UserError: the folder's rank, α, names or shapes are not those of this run, or it has more than plain LoRA.
    """
    config = read_json(path / CONFIG)
    wanted = {**_PLAIN, "r": lora.rank, "lora_alpha": lora.alpha}
    different = [key for key, value in wanted.items() if key != "task_type" and (config.get(key) or value) != value]
    if different:
        key = different[0]
        raise UserError(
            f"{path / CONFIG} has {key} {config[key]!r}, and this run needs {wanted[key]!r}: set lora to it"
        )
    expected = {
        name: shape
        for pair in factors
        for row in (pair.a, pair.b)
        for name, shape in zip(row.hf, row.hf_shapes, strict=True)
    }
    stored = safe_open(path / WEIGHTS, "pt")
    found = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118 (no mapping)
    if found != expected:
        names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        raise UserError(
            f"{path / WEIGHTS} and lora.targets differ in {len(names)} tensors, such as {names[0]} "
            f"({found.get(names[0])}, and {expected.get(names[0])} in this run): set lora.targets to its layers"
        )

    def read(name: str, dim: int, start: int, stop: int) -> Tensor:
        part = stored.get_slice(name)
        return part[start:stop] if dim == 0 else part[:, start:stop]

    return read
