"""Which experts each token went to, layer by layer, as a rollout carries it: one string, small enough for a log."""

import base64
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RouterShape:
    """What the routers of a model choose from."""

    num_layers: int  # that have experts
    topk: int
    num_experts: int


def pack_routes(routes: torch.Tensor, num_experts: int) -> str:
    """The experts of n tokens, [n, layers, topk] integers, as base64 of one or two bytes a choice."""
    return base64.b64encode(routes.to(_dtype(num_experts)).contiguous().numpy().tobytes()).decode()


def unpack_routes(text: str, shape: RouterShape) -> torch.Tensor:
    """The reverse of `pack_routes`: [n, layers, topk] int64.

    Raises:
        ValueError: the string is not of whole tokens, or names an expert that there is not.
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
