"""A dispatch mode that writes what operators and collectives do into the ledger of a rank, and runs them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from sspo_rehearsal.ledger import WITH_FROZEN, Ledger

aten: Any = torch.ops.aten

Route = Callable[[int, int], torch.Tensor]
"""(rows, experts per token) -> the experts of each row [rows, experts per token]."""

# operator of c10d -> (the collective's name, argument with the process group, argument whose bytes are counted)
COLLECTIVES: Mapping[str, tuple[str, int, int]] = {
    "allreduce_": ("all_reduce", 1, 0),
    "allreduce_coalesced_": ("all_reduce", 1, 0),
    "reduce_": ("reduce", 1, 0),
    "broadcast_": ("broadcast", 1, 0),
    "_allgather_base_": ("all_gather", 2, 0),
    "allgather_": ("all_gather", 2, 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 2, 0),
    "reduce_scatter_": ("reduce_scatter", 2, 1),
    "_reduce_scatter_base_": ("reduce_scatter", 2, 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 2, 1),
    "alltoall_base_": ("all_to_all", 2, 1),
    "alltoall_": ("all_to_all", 2, 1),
    "gather_": ("gather", 2, 1),
    "scatter_": ("scatter", 2, 0),
    "send": ("send", 1, 0),
    "recv_": ("recv", 1, 0),
    "barrier": ("barrier", 1, 0),
}


def _attention(query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, **_: Any) -> int:
    # the kernels skip what the causal mask hides, which is half
    return sdpa_flop_count(query.shape, key.shape, value.shape) // (2 if is_causal else 1)


def _attention_backward(
    gradient: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, dropout_p: float, is_causal: bool, **_: Any
) -> int:
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    return sdpa_backward_flop_count(*shapes) // (2 if is_causal else 1)


def _product_added(total: Any, left: Any, right: Any, **_: Any) -> int:
    return 2 * left.shape[0] * left.shape[1] * right.shape[1]


# torch has no formula for the CPU's attention, nor for products that are added in place
_FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.addmm_: _product_added,
}


class Recorder(TorchDispatchMode):
    """Runs every operator and collective as it is, and writes it into the ledger.

    Only the routers' choices are replaced, so that the same tokens go to the same experts whatever the weights are.

    Args:
        num_experts: the number of experts; a `topk` over this many columns is a router's choice. 0 for a dense model.
        route: the experts that each row goes to.
    """

    def __init__(self, ledger: Ledger, num_experts: int, route: Route) -> None:
        super().__init__()
        self.ledger = ledger
        self._num_experts = num_experts
        self._route = route

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operator."""
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            return self._collective(func, args, kwargs)
        out = self._run(func, args, kwargs)
        if func is aten.topk.default and self._num_experts and args[0].shape[-1] == self._num_experts:
            out = out[0], self._route(*out[0].shape)
        self._count(func, args, kwargs, out)
        return out

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def _run_collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.split("::")[1]
        if name not in COLLECTIVES:
            raise NotImplementedError(f"the rehearsal does not know the collective c10d::{name}")
        kind, group_at, payload_at = COLLECTIVES[name]
        group: Any = dist.ProcessGroup.unbox(args[group_at])
        size = 0 if kind == "barrier" else sum(map(_bytes, tree_leaves(args[payload_at])))
        ranks = tuple(dist.get_process_group_ranks(group))
        if len(ranks) > 1:
            self.ledger.send(kind, group.group_desc or "default", ranks, size)
        return self._run_collective(func, args, kwargs)

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        outputs = (out,) if isinstance(out, torch.Tensor) else tree_leaves(out)
        formula = _FORMULAS.get(func._overloadpacket)
        if formula is not None:
            count = int(formula(*args, **kwargs, out_val=out))
            self.ledger.flops[self.ledger.phase] += count
            tensors = (value for value in args if isinstance(value, torch.Tensor))
            if self.ledger.frozen and any(t.untyped_storage()._cdata in self.ledger.frozen for t in tensors):
                self.ledger.flops[self.ledger.phase + WITH_FROZEN] += count
        elif not func.is_view:
            inputs = tree_leaves((args, kwargs))
            self.ledger.traffic[self.ledger.phase] += sum(map(_bytes, inputs)) + sum(map(_bytes, outputs))
        for tensor in outputs:
            if isinstance(tensor, torch.Tensor):
                self.ledger.allocate(tensor)


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def route_of(num_experts: int, *, expert_ranks: int = 1, skew: float = 1.0) -> Route:
    """Returns a route by which experts are chosen equally often, or those of the first expert rank more often.

    They are then chosen `skew` times as often, at random, with a fixed seed.
    """

    def balanced(rows: int, chosen: int) -> torch.Tensor:
        return (torch.arange(rows * chosen) % num_experts).view(rows, chosen)

    weights = torch.ones(max(1, num_experts))
    weights[: num_experts // expert_ranks] = skew
    generator = torch.Generator().manual_seed(0)

    def skewed(rows: int, chosen: int) -> torch.Tensor:
        return torch.multinomial(weights.expand(rows, -1), chosen, generator=generator)

    return balanced if skew == 1 else skewed
