"""Packs the experts that each token was routed to in each layer into one string, small enough for a log."""

import base64
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RouterShape:
    """The shape of the routing choices of a model."""

    num_layers: int  # layers with experts only
    topk: int
    num_experts: int


def pack_routes(routes: torch.Tensor, num_experts: int) -> str:
    """Packs the experts of n tokens, integers [n, layers, topk], as base64 of one or two bytes a choice."""
    return base64.b64encode(routes.to(_dtype(num_experts)).contiguous().numpy().tobytes()).decode()


def unpack_routes(text: str, shape: RouterShape) -> torch.Tensor:
    """Reverses `pack_routes`; returns int64 [n, layers, topk].

    Raises:
        ValueError: the string does not hold a whole number of tokens, or names an expert that does not exist.
    """
    dtype = _dtype(shape.num_experts)
    data = bytearray(base64.b64decode(text, validate=True))
    per_token = shape.num_layers * shape.topk
    if len(data) % (per_token * dtype.itemsize):
        raise ValueError(f"the routes are {len(data)} bytes, and {per_token} choices a token do not divide that")
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    routes = flat.to(torch.int64).view(-1, shape.num_layers, shape.topk)
    if len(routes) and not 0 <= int(routes.min()) <= int(routes.max()) < shape.num_experts:
        raise ValueError(f"the routes name experts {int(routes.min())} to {int(routes.max())} of {shape.num_experts}")
    return routes


def _dtype(num_experts: int) -> torch.dtype:
    return torch.uint8 if num_experts <= 256 else torch.int16
