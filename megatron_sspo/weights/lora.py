"""The factors of adapters as rows of the weight table, so that loading, gathering and export are those of weights.

An adapter of W [out, in] with rank r adds (α/r) · B A, with A [r, in] and B [out, r]. A Megatron parameter that is made
of several Hugging Face tensors (q, k and v; gate and up) has an adapter for each of them, as PEFT has. Its factor
`lora_A` [n·r, in] has the n factors A one below the other. Its `lora_B` [out, r] has the rows of the n factors B in the
order of the parameter's own rows, and is cut as they are.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.weights.sharding import EvenSplit, GatedQKV, Sharding
from megatron_sspo.weights.table import ParameterMap, Read

PREFIX = "base_model.model."  # of PEFT's names
_TARGETS = {
    "attention": (".self_attention.linear_qkv.weight", ".self_attention.linear_proj.weight"),
    "mlp": tuple(f".{module}.linear_{fc}.weight" for module in ("mlp", "shared_experts") for fc in ("fc1", "fc2")),
    "experts": (".linear_fc1.weight", ".linear_fc2.weight"),
}


@dataclass(frozen=True)
class Factors:
    """The rows of an adapter's two factors, and the row of the weight that it is added to."""

    weight: ParameterMap
    a: ParameterMap
    b: ParameterMap


def factors_of(rows: Sequence[ParameterMap], targets: Collection[str], rank: int) -> list[Factors]:
    """Returns the factors of the weights that are adapted, in the table's order, for names of `run.LoRA.targets`.

    Raises UserError if the model has no weight of one of the targets, or latent attention.
    """
    if any(row.name.endswith(".linear_kv_up_proj.weight") for row in rows):
        raise UserError("lora is set, and models with multi-head latent attention have no adapters here: leave it out")
    wanted = {target: [row for row in rows if _is_of(row.name, target) and not row.is_fused] for target in targets}
    if missing := [target for target, found in wanted.items() if not found]:
        raise UserError(
            f"lora.targets has {missing[0]!r}, and the model has no such layers, or experts as one tensor: leave it out"
        )
    if any(isinstance(row.sharding, GatedQKV) for row in rows):
        raise UserError(
            "lora is set, and models whose attention has an output gate have no adapters here: leave it out"
        )
    names = {row.name for found in wanted.values() for row in found}
    return [_factors(row, rank) for row in rows if row.name in names]


def factor_rows(rows: Sequence[ParameterMap], *, targets: Collection[str], rank: int) -> list[ParameterMap]:
    """Returns the rows of all factors: see `factors_of`."""
    return [row for pair in factors_of(rows, targets, rank) for row in (pair.a, pair.b)]


def _is_of(name: str, target: str) -> bool:
    return (".mlp.experts." in name) == (target == "experts") and name.endswith(_TARGETS[target])


def _factors(row: ParameterMap, rank: int) -> Factors:
    stem = row.name.removesuffix("weight")
    a = ParameterMap(
        name=f"{stem}lora_A",
        hf=_peft_names(row, "lora_A"),
        hf_shapes=tuple((rank, shape[1]) for shape in row.hf_shapes),
        sharding=row.sharding if row.dim else EvenSplit("lora.rank"),
        group=row.group if row.dim else "none",
    )
    b = ParameterMap(
        name=f"{stem}lora_B",
        hf=_peft_names(row, "lora_B"),
        hf_shapes=tuple((shape[0], rank) for shape in row.hf_shapes),
        sharding=Sharding() if row.dim else row.sharding,
        group="none" if row.dim else row.group,
    )
    return Factors(row, a, b)


def _peft_names(row: ParameterMap, factor: str) -> tuple[str, ...]:
    return tuple(f"{PREFIX}{name.removesuffix('.weight')}.{factor}.weight" for name in row.hf)


def initial_factors(factors: Sequence[Factors], seed: int) -> Read:
    """Returns a reader of PEFT's first values: A is uniform in ±1/√in and B is 0, so that a run starts as the base.

    They depend on the seed and the name alone, and so not on the layout.
    """
    shapes = {name: shape for pair in factors for name, shape in zip(pair.a.hf, pair.a.hf_shapes, strict=True)}
    outs = {name: shape for pair in factors for name, shape in zip(pair.b.hf, pair.b.hf_shapes, strict=True)}

    def read(name: str, dim: int, start: int, stop: int) -> torch.Tensor:
        if name in outs:
            return torch.zeros(outs[name]).narrow(dim, start, stop - start)
        generator = torch.Generator().manual_seed(int.from_bytes(sha256(f"{seed} {name}".encode()).digest()[:8], "big"))
        bound = 1 / math.sqrt(shapes[name][1])
        whole = torch.empty(shapes[name]).uniform_(-bound, bound, generator=generator)
        return whole.narrow(dim, start, stop - start)

    return read


def rows_of_sources(row: ParameterMap, shard: int, num_shards: int) -> list[list[int]]:
    """Returns, for each of the row's Hugging Face tensors, the rows of a shard that are its own."""
    if row.dim:
        return [list(range(row.hf_shapes[0][0]))]
    found: list[list[int]] = [[] for _ in row.hf]
    offset = 0
    for block in row.blocks(shard, num_shards):
        assert block.source is not None  # adapted weights have no padding
        found[block.source] += range(offset, offset + block.size)
        offset += block.size
    return found
