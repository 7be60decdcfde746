"""Adapters on Megatron's linear layers: they add (α/r) · B A x to what a layer returns, and train in its place.

Under tensor parallelism a factor is cut as its weight is, or is whole on every rank (see `factors`):

* column-parallel layers (linear_qkv, linear_fc1): A is whole, B is cut. Every rank needs all of h = A x;
* row-parallel layers (linear_proj, linear_fc2): A is cut, B is whole. h is the sum of the ranks' parts.

Ranks exchange h alone, which is r wide. Experts get their tokens from the dispatcher, which also sums their outputs
over expert-tensor ranks; there the gradient of a whole factor is summed instead.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import mappings
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from megatron_sspo.errors import UserError
from megatron_sspo.lora.peft_folder import read_peft_folder
from megatron_sspo.run import LoRA
from megatron_sspo.weights.gather import GatherPlan
from megatron_sspo.weights.lora import Factors, factors_of, initial_factors, rows_of_sources
from megatron_sspo.weights.pieces import Shard
from megatron_sspo.weights.table import ParameterMap, Read


def add_adapters(
    chunks: Sequence[Any], rows: Sequence[ParameterMap], lora: LoRA, seed: int, **layout: Any
) -> "Adapters":
    """Freezes this process's model, which has its weights, and adds adapters, before DDP wraps it. A collective.

    Args:
        rows: the weight table of the model.
        layout: `parameters_of` and `shard_of` of `Adapters`.

    Raises:
        UserError: see `factors_of` and `read_peft_folder`.
    """
    factors = factors_of(rows, lora.targets, lora.rank)
    read = read_peft_folder(Path(lora.path), lora, factors) if lora.path else initial_factors(factors, seed)
    return Adapters(chunks, factors, scale=lora.alpha / lora.rank, read=read, **layout)


class Adapters:
    """The adapters of this process's part of the model, whose weights are frozen.

    Args:
        factors: the rows of all adapters of the model.
        scale: α/r.
        read: reads the factors' first values by PEFT's names, or those of a folder.
        parameters_of: yields (logical name, parameter) of chunks.
        shard_of: returns which shard of a row this rank holds.
    """

    def __init__(
        self,
        chunks: Sequence[Any],
        factors: Sequence[Factors],
        *,
        scale: float,
        read: Read,
        parameters_of: Callable[[Sequence[Any]], Iterable[tuple[str, torch.nn.Parameter]]],
        shard_of: Callable[[ParameterMap], Shard],
    ) -> None:
        self.factors = factors
        self._shard_of = shard_of
        self._scale = scale
        self._is_on = True
        self._merging: dict[str, _Adapter] = {}
        by_name = {pair.weight.name: pair for pair in factors}
        for chunk in chunks:
            owners = {id(p): module for module in chunk.modules() for p in module.parameters(recurse=False)}
            for name, parameter in list(parameters_of([chunk])):
                parameter.requires_grad_(False)
                if name in by_name:
                    module = owners[id(parameter)]
                    if not hasattr(module, "weight"):
                        raise UserError("megatron.moe_grouped_gemm is on, and adapters need a layer for each expert")
                    adapter = _Adapter(module, parameter, by_name[name], chunk.config, read, shard_of)
                    module.register_forward_hook(self._add(adapter))
                    _save_factors(module, adapter)
                    self._merging[name] = adapter
            if chunk.pre_process:
                # recomputation drops gradients where nothing that enters a layer needs one
                chunk.embedding.register_forward_hook(
                    lambda _, __, output: output.requires_grad_(torch.is_grad_enabled())
                )

    def _add(self, adapter: "_Adapter") -> Any:
        def hook(module: Any, args: tuple[Any, ...], output: tuple[torch.Tensor, Any]) -> Any:
            if not self._is_on:
                return output
            return output[0] + self._scale * adapter.product(_normed(module, args[0])), output[1]

        return hook

    @contextmanager
    def off(self) -> Iterator[None]:
        """Makes the model the base."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True

    def merged(self, parameters: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Returns the weights by their logical names, each with its adapter added when it is read."""
        return _Merged(parameters, self._merging, self._scale)

    def gather_plan(self) -> GatherPlan:
        """Returns the plan that gathers the factors under PEFT's names. A collective."""
        rows, parameters, shards = [], {}, {}
        for pair in self.factors:
            rows += [pair.a, pair.b]
            if adapter := self._merging.get(pair.weight.name):
                for row, parameter in ((pair.a, adapter.a), (pair.b, adapter.b)):
                    parameters[row.name], shards[row.name] = parameter, self._shard_of(row)
        return GatherPlan(rows, parameters, shards)


class _Adapter:
    """The two factors of one weight."""

    def __init__(
        self,
        module: Any,
        weight: torch.nn.Parameter,
        factors: Factors,
        config: Any,
        read: Read,
        shard_of: Callable[[ParameterMap], Shard],
    ) -> None:
        self.is_row_parallel = factors.weight.dim == 1
        self.is_gated = len(factors.weight.hf) == 2
        self.is_expert = factors.weight.group == "expert_tensor"
        self.group: Any = (
            parallel_state.get_expert_tensor_parallel_group()
            if self.is_expert
            else parallel_state.get_tensor_model_parallel_group()
        )
        self.is_sequence_parallel = config.sequence_parallel and not self.is_expert
        self.a, self.b = (
            self._register(module, weight, row, row.to_megatron(read, *shard_of(row))) for row in (factors.a, factors.b)
        )
        self.rank = factors.b.hf_shapes[0][1]
        rows = rows_of_sources(factors.weight, *shard_of(factors.weight))
        self._rows = [torch.tensor(indices, dtype=torch.int64, device=weight.device) for indices in rows]
        order = torch.cat(self._rows)
        self._inverse = None if bool((order.diff() > 0).all()) else order.argsort()

    def _register(self, module: Any, weight: Any, row: ParameterMap, value: torch.Tensor) -> torch.nn.Parameter:
        factor: Any = torch.nn.Parameter(value.to(weight.device, weight.dtype, copy=True))
        factor.allreduce = getattr(weight, "allreduce", True)  # of experts, over their own data-parallel group
        if row.group != "none":
            factor.tensor_model_parallel, factor.partition_dim, factor.partition_stride = True, row.dim, 1
        elif self.is_expert:
            # every rank counts its experts in the norm of the gradient, but copies of one expert count once
            factor.tensor_model_parallel, factor.shared = True, self.group.rank() > 0
        else:
            factor.tensor_model_parallel = False
            factor.sequence_parallel = self.is_sequence_parallel  # Megatron then sums its gradient over tensor ranks
        module.register_parameter(row.name.rpartition(".")[2], factor)
        return factor

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Returns B A x, without α/r, as the layer returns W x."""
        if self.is_expert:
            # the sum over ranks of the gradient of the whole factor; its value is the same
            copy = mappings.copy_to_tensor_model_parallel_region
            a, b = (self.a, copy(self.b, self.group)) if self.is_row_parallel else (copy(self.a, self.group), self.b)
            return self._times_b(x @ a.t(), b)
        exchange: Any = {
            (True, True): mappings.reduce_scatter_to_sequence_parallel_region,
            (True, False): mappings.reduce_from_tensor_model_parallel_region,
            (False, True): mappings.gather_from_sequence_parallel_region,
            (False, False): mappings.copy_to_tensor_model_parallel_region,
        }[self.is_row_parallel, bool(self.is_sequence_parallel)]
        return self._times_b(exchange(x @ self.a.t(), group=self.group), self.b)

    def _times_b(self, h: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Returns the product of each row of B with its own source's part of h [..., n·r]."""
        if len(self._rows) == 1:
            return h @ b.t()
        parts = [part @ b[rows].t() for part, rows in zip(h.split(self.rank, -1), self._rows, strict=True)]
        joined = torch.cat(parts, -1)
        return joined if self._inverse is None else joined[..., self._inverse]

    def delta(self) -> torch.Tensor:
        """Returns this rank's shard of B A in float32."""
        return self._times_b(self.a.float().t(), self.b.float()).t()


class _Merged(Mapping[str, torch.Tensor]):
    def __init__(self, weights: Mapping[str, torch.Tensor], adapters: Mapping[str, _Adapter], scale: float) -> None:
        self._weights, self._adapters, self._scale = weights, adapters, scale

    @torch.no_grad()
    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self._weights[name]
        if name not in self._adapters:
            return weight
        return (weight.float() + self._scale * self._adapters[name].delta()).to(weight.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _normed(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Returns the input of the linear layer; Transformer Engine's may begin with a norm, whose output it keeps."""
    weight = getattr(module, "layer_norm_weight", None)
    return x if weight is None else F.rms_norm(x, (x.shape[-1],), weight, module.eps)


def _save_factors(module: Any, adapter: _Adapter) -> None:
    """Lets a layer say how its factors are cut, in the state that checkpoints are made of."""
    original = module.sharded_state_dict

    def sharded_state_dict(prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        factors = make_sharded_tensors_for_checkpoint(
            {"lora_A": adapter.a, "lora_B": adapter.b},
            prefix,
            {("lora_A" if adapter.is_row_parallel else "lora_B"): int(adapter.is_row_parallel)},
            sharded_offsets,
            tp_group=adapter.group,
            dp_cp_group=metadata["dp_cp_group"],
        )
        key = f"{prefix}lora_B"
        if adapter.is_gated:
            factors[key] = apply_swiglu_sharded_factory(factors[key], sharded_offsets)
        return original(prefix, sharded_offsets, metadata) | factors

    module.sharded_state_dict = sharded_state_dict
