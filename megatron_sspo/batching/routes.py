"""The experts that each token was routed to in each layer, as one flat array of one or two bytes a choice."""

from dataclasses import dataclass

import numpy as np

from megatron_sspo.arrays.convert import freeze


@dataclass(frozen=True)
class RouterShape:
    """The shape of the routing choices of a model."""

    num_layers: int  # layers with experts only
    topk: int
    num_experts: int

    @property
    def dtype(self) -> np.dtype:
        """The type in which a choice is kept."""
        return route_dtype(self.num_experts)


def route_dtype(num_experts: int) -> np.dtype:
    """Returns the smallest type for the numbers of `num_experts` experts."""
    return np.dtype(np.uint8 if num_experts <= 256 else np.uint16)


def pack_routes(routes: np.ndarray, num_experts: int) -> np.ndarray:
    """Packs the experts of n tokens, integers [n, layers, topk], as a read-only array [n · layers · topk]."""
    return freeze(routes.astype(route_dtype(num_experts)).reshape(-1))


def unpack_routes(routes: np.ndarray, shape: RouterShape) -> np.ndarray:
    """Reverses `pack_routes`; returns a view [n, layers, topk].

    Raises:
        ValueError: these are not the choices of a whole number of tokens, or name an expert that does not exist.
    """
    per_token = shape.num_layers * shape.topk
    if len(routes) % per_token:
        raise ValueError(f"the routes are {len(routes)} choices, and {per_token} choices a token do not divide that")
    if len(routes) and routes.max() >= shape.num_experts:
        raise ValueError(f"the routes name experts {routes.min()} to {routes.max()} of {shape.num_experts}")
    return routes.reshape(-1, shape.num_layers, shape.topk)
