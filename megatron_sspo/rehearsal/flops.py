"""The FLOPs of operators."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten: Any = torch.ops.aten


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
FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.addmm_: _product_added,
}
