"""Folders in which all experts of a layer are one tensor, as Transformers 5 has them in memory.

`save_pretrained(..., save_original_format=False)` writes such folders. Their tensors are seen as one tensor per expert.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from megatron_sspo.weights.family import EXPERTS, Config, ExpertNames, load_family, size
from megatron_sspo.weights.formats.safetensors_file import StoredTensor

_FUSED = re.compile(r"(model\.layers\.\d+)\.mlp\.experts\.(gate_up_proj|down_proj)")
_ROUTER = re.compile(r"(model\.layers\.\d+)\.mlp\.gate\.weight")


def split_fused_experts(stored: Sequence[StoredTensor], config: Config, folder: Path) -> list[StoredTensor]:
    """Returns the tensors, with one per expert in place of those that hold all experts of a layer."""
    if not any(_FUSED.fullmatch(tensor.name) for tensor in stored):
        return list(stored)
    names = load_family(config, folder).expert_names
    if names is None:
        return list(stored)
    num_experts = size(config, *EXPERTS)
    return [part for tensor in stored for part in _split(tensor, names, num_experts)]


def _split(tensor: StoredTensor, names: ExpertNames, num_experts: int) -> Iterator[StoredTensor]:
    router, fused = _ROUTER.fullmatch(tensor.name), _FUSED.fullmatch(tensor.name)
    if router is not None:
        yield replace(tensor, name=f"{router[1]}.{names.router}.weight")
        return
    modules = (names.gate, names.up) if fused is not None and fused[2] == "gate_up_proj" else (names.down,)
    if fused is None or len(tensor.shape) != 3 or tensor.shape[0] != num_experts or tensor.shape[1] % len(modules):
        yield tensor  # one of the wrong shape has no row in the weight table
        return
    shape = (tensor.shape[1] // len(modules), tensor.shape[2])
    for number, (expert, module) in enumerate(product(range(num_experts), modules)):
        yield tensor.part(f"{fused[1]}.{module.format(e=expert)}.weight", number, shape)
