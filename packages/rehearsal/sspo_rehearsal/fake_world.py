"""A fake process group for one rank, with the objects that other ranks would have sent."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.optimizer import clip_grads
from megatron.core.transformer import module
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from torch.testing._internal.distributed.fake_pg import FakeStore

from megatron_sspo.memory.parameters import layers_of_stages, padded_vocab_size, rows_of_stage
from megatron_sspo.policy.layers.attention import PackedAttention
from megatron_sspo.run import Parallel, Run
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.pieces import ShardHolders, holders_among
from megatron_sspo.weights.table import ParameterMap

Shards = dict[str, tuple[int, int]]


@contextmanager
def fake_world(parallel: Parallel, rank: int) -> Iterator[None]:
    """Makes this process a rank of the layout, with a process group that connects to nobody.

    Objects that ranks gather are taken to be the same on all ranks, and an object that another rank broadcasts is taken
    to be this rank's.
    """
    world_size = parallel.num_processes
    real_new_group: Any = dist.new_group

    def new_group(*args: Any, **options: Any) -> Any:
        return real_new_group(*args, **{**options, "backend": "fake"})

    def all_gather_object(found: list[Any], value: Any, group: Any = None) -> None:
        found[:] = [value] * len(found)

    def send_and_receive(operations: list[Any]) -> list[Any]:
        """Calls them one by one; torch would ask for the backend of tensors without storage, to call them at once."""
        return [one.op(one.tensor, one.peer, group=one.group, tag=one.tag) for one in operations]

    with ExitStack() as stack:
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
        stack.enter_context(patch.dict(os.environ, ranks))
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
        stack.callback(dist.destroy_process_group)
        stack.enter_context(patch.object(dist, "new_group", new_group))
        stack.enter_context(patch.object(dist, "all_gather_object", all_gather_object))
        stack.enter_context(patch.object(dist, "broadcast_object_list", lambda *_, **__: None))
        stack.enter_context(patch.object(dist, "batch_isend_irecv", send_and_receive))
        yield


@contextmanager
def without_storage() -> Iterator[None]:
    """Replaces the few functions that need values, or a device of their own, by ones for tensors without storage."""
    real_type: Any = torch.Tensor.type
    real_attention: Any = F.scaled_dot_product_attention

    def type_of(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        found = real_type(self, *args, **options)
        return found.replace(".meta.", ".") if isinstance(found, str) else found  # optimizers compare the name

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
        """Chooses the kernel that a CPU would; for shapes alone torch would compute all scores."""
        if not query.is_meta:
            return real_attention(query, key, value, attn_mask=attn_mask, **options)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, torch.full((), -torch.inf, dtype=query.dtype))
        if narrower := key.shape[-1] - value.shape[-1]:  # of latent attention, while this kernel takes one width
            value = F.pad(value, (0, narrower))
            return attention(query, key, value, attn_mask, **options)[..., :-narrower]
        kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        dropout, is_causal = options.get("dropout_p", 0.0), options.get("is_causal", False)
        return kernel(query, key, value, dropout, is_causal, attn_mask=attn_mask, scale=options.get("scale"))[0]

    def norm(chunk_size: int, overflow: Any, lists: Any, *_: Any) -> Any:
        """Combines the norms without `torch.tensor`, which would need their values."""
        return torch.norm(torch.stack([torch.norm(tensor) for tensor in lists[0]])).view(1).clone(), None

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.Tensor, "type", type_of))
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", attention))
        # Megatron keeps the scale of the routers' losses, which has no storage here, for the rest of the process
        stack.enter_context(patch.object(MoEAuxLossAutoScaler, "main_loss_backward_scale", None))
        for name, dtype in _DTYPES.items():
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, _tensors_of(dtype)))
        if hasattr(clip_grads, "l2_norm_impl"):
            stack.enter_context(patch.object(clip_grads, "l2_norm_impl", norm))
        yield


class _Sunk(torch.autograd.Function):
    """Passes the output of attention on, and gives the sinks a gradient."""

    @staticmethod
    def forward(context: Any, output: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        context.sinks = sinks
        return output.view_as(output)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], torch.zeros_like(context.sinks)


def without_masks() -> AbstractContextManager[Any]:
    """Lets attention with sinks and windows keep what a GPU's kernels do, which make no masks.

    Windows are computed as if they were as long as the sequence.
    """
    real: Any = PackedAttention._attend

    def attend(self: Any, *args: Any) -> torch.Tensor:
        plain = SimpleNamespace(
            window=None, softmax_offset=None, scale=self.scale, dropout=self.dropout, training=self.training
        )
        output = real(plain, *args)
        return output if self.softmax_offset is None else _Sunk.apply(output, self.softmax_offset)

    return patch.object(PackedAttention, "_attend", attend)


# the names of torch's tensor types in Megatron, which tensors without storage are not instances of
_DTYPES = {"_FLOAT_TYPES": torch.float32, "_HALF_TYPES": torch.float16, "_BF16_TYPES": torch.bfloat16}


def _tensors_of(dtype: torch.dtype) -> type:
    """Returns a type whose instances are the tensors of a dtype."""

    class OfDtype(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and value.dtype == dtype

    return OfDtype("OfDtype", (), {})


def known_holders(run: Run, config: Mapping[str, Any]) -> Callable[[Mapping[str, tuple[int, int]]], ShardHolders]:
    """Returns a function that says which rank holds which shard, by the layout.

    The shards of this rank are compared with those that its model really has.
    """
    family = load_family(config)
    architecture = family.transformer_fields(config)
    rows = family.rows(config, padded_vocab_size(int(config["vocab_size"]), run.parallel.tensor))
    known = Shardings(run, rows, architecture["num_layers"], architecture.get("num_moe_experts") or 0)

    def holders(shards: Mapping[str, tuple[int, int]]) -> ShardHolders:
        if known.of_rank(dist.get_rank()) != dict(shards):
            raise RuntimeError("the rehearsal does not know this layout's shards: update Shardings")
        return known.holders()

    return holders


class Shardings:
    """The shards of the weights that each rank of a layout holds."""

    def __init__(self, run: Run, rows: Sequence[ParameterMap], num_layers: int, num_experts: int) -> None:
        self._parallel = run.parallel
        layers = layers_of_stages(num_layers, run.parallel, run.megatron)
        self._rows = [rows_of_stage(rows, stage, layers) for stage in range(run.parallel.pipeline)]
        self._num_experts = num_experts // run.parallel.expert  # of a layer on a rank

    def of_rank(self, rank: int) -> Shards:
        """Returns (number, count) of the shard of each parameter that a rank holds."""
        parallel = self._parallel
        stage, within = divmod(rank, parallel.num_processes // parallel.pipeline)
        expert = within // parallel.expert_tensor % parallel.expert
        shard = {
            "none": (0, 1),
            "tensor": (within % parallel.tensor, parallel.tensor),
            "expert_tensor": (within % parallel.expert_tensor, parallel.expert_tensor),
        }
        return {row.name: shard[row.group] for row in self._rows[stage] if self._holds(expert, row.name)}

    def holders(self) -> ShardHolders:
        """Returns the ranks that hold each shard, as `pieces.holders_of` does."""
        parallel = self._parallel
        of_stage = parallel.num_processes // parallel.pipeline
        distinct = min(of_stage, parallel.tensor * parallel.expert * parallel.expert_tensor)
        # ranks beyond these repeat the shards of lower ones
        ranks = [stage * of_stage + within for stage in range(parallel.pipeline) for within in range(distinct)]
        return holders_among({rank: self.of_rank(rank) for rank in ranks})

    def _holds(self, expert_rank: int, name: str) -> bool:
        """Returns whether an expert-parallel rank holds a parameter of its stage."""
        number = re.search(r"\.experts\.(\d+)\.", name)
        return number is None or int(number[1]) // self._num_experts == expert_rank
