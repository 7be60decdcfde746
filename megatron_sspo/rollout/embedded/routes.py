"""The experts that the embedded engine's routers choose, recorded while it decodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatron_sspo.batching.routes import pack_routes
from megatron_sspo.errors import UserError


class RouteRecorder:
    """Records the experts of every token in every layer of a model of Transformers that has experts.

    Raises:
        UserError: the model has no router that returns (logits, weights, experts).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._passed: list[Tensor] = []  # in the present forward pass: [rows · positions, topk] of each layer so far
        routers: list[Any] = [each for each in model.modules() if type(each).__name__.lower().endswith("topkrouter")]
        if not routers:
            raise UserError(
                f'routing_replay is "R3", and the engine "embedded" finds no routers in {type(model).__name__}: choose '
                '"R2", or "none" for a model without experts'
            )
        self._num_experts: int = routers[0].num_experts
        for router in routers:
            router.register_forward_hook(lambda _, __, output: self._passed.append(output[2]))

    def take(self, num_rows: int) -> np.ndarray:
        """Returns the experts of the forward pass that has ended: [rows, positions, layers, topk]."""
        found = torch.stack([experts.unflatten(0, (num_rows, -1)) for experts in self._passed], dim=2)
        self._passed.clear()
        return found.cpu().numpy()

    def pack(self, routes: Sequence[np.ndarray]) -> np.ndarray:
        """Packs the experts of successive tokens, each [positions, layers, topk], as `Rollout.routes` has them."""
        return pack_routes(np.concatenate(routes), self._num_experts)
