"""Routing replay: tokens go to the same experts as in an earlier pass.

Between sampling and training, rounding alone moves some tokens to other experts, and a ratio of probabilities under
different experts says little about the policy. R2 replays the routes of the pass that computed log π_old; R3 replays
those that the engine reports. The router's weights are still trained: its scores are computed afresh and gathered at
the replayed experts.

Megatron's own `RouterReplay` does the work in each router. This module gives it the rows of the current microbatch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from megatron.core.utils import unwrap_model

from megatron_sspo.batching.context import zigzag
from megatron_sspo.batching.microbatch import Microbatch
from megatron_sspo.batching.routes import RouterShape, pack_routes
from megatron_sspo.policy.router_load import rows_of_routers
from megatron_sspo.processes import agree

if TYPE_CHECKING:
    from megatron_sspo.batching.holders import Holders

Mode = Literal["record", "replay"]


class RoutingReplay:
    """The routers of model chunks, built with `moe_enable_routing_replay`. Building one is a collective."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        RouterReplay.clear_global_router_replay_instances()  # a list that would keep every model of the process alive
        self._chunks: list[Any] = [unwrap_model(chunk) for chunk in chunks]
        routers = [[m for m in chunk.modules() if isinstance(m, TopKRouter)] for chunk in self._chunks]
        self._routers: list[list[Any]] = [[router.router_replay for router in found] for found in routers]
        numbers: list[list[Any]] = [[router.layer_number for router in found] for found in routers]
        layers = sorted({number for rank in agree.all_gather_objects(numbers) for chunk in rank for number in chunk})
        self._layers = [[layers.index(number) for number in chunk] for chunk in numbers]
        config = self._chunks[0].config
        self.shape = RouterShape(len(layers), config.moe_router_topk, config.num_moe_experts)
        self._recomputes = config.recompute_granularity is not None
        self._rows = partial(rows_of_routers, sequence_parallel=config.sequence_parallel)
        self._mode: Mode | None = None
        self._recorded: list[list[torch.Tensor]] = [[] for _ in self._chunks]

    @contextmanager
    def schedule(self, mode: Mode | None) -> Iterator[None]:
        """Sets the mode for one run of the pipeline schedule. With None, the routers choose for themselves."""
        self._mode = mode
        self._recorded = [[] for _ in self._chunks]
        try:
            yield
        finally:
            self._mode = None
            for router in (router for chunk in self._routers for router in chunk):
                router.clear_router_replay_action()
                router.clear_indices()

    @contextmanager
    def forward(self, chunk: Any, microbatch: Microbatch) -> Iterator[None]:
        """Records or replays the routes of one forward pass of an unwrapped chunk."""
        number = next(i for i, other in enumerate(self._chunks) if other is chunk)
        if self._mode == "replay":
            self._set_routes(number, microbatch)
        elif self._mode == "record":
            for router in self._routers[number]:
                router.set_router_replay_action(RouterReplayAction.RECORD)
        yield
        if self._mode == "replay":
            for router in self._routers[number]:
                if self._recomputes:  # the backward pass needs the microbatches' routes again, in the same order
                    router.set_router_replay_action(RouterReplayAction.REPLAY_BACKWARD)
                else:
                    router.clear_indices()
        elif self._mode == "record":
            found = [router.get_recorded_indices() for router in self._routers[number]]
            empty = torch.empty(len(microbatch.tokens), 0, self.shape.topk, dtype=torch.int64)
            self._recorded[number].append(torch.stack(found, dim=1).cpu() if found else empty)

    def _set_routes(self, number: int, microbatch: Microbatch) -> None:
        assert microbatch.routes is not None
        routes = microbatch.routes[self._rows(len(microbatch.routes))]
        for router, layer in zip(self._routers[number], self._layers[number], strict=True):
            router.set_target_indices(routes[:, layer].long())
            router.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)

    def gather_routes(
        self,
        members: Sequence[Sequence[int]],
        microbatches: Sequence[Microbatch],
        lengths: Sequence[int],
        holders: "Holders",
    ) -> dict[int, np.ndarray]:
        """Returns packed routes by the index of the sequence, after a schedule run that recorded them. A collective.

        They are those of the sequences that this rank holds; rank 0 holds all.

        Args:
            members: the indices of the sequences in each of this rank's microbatches.
            lengths: the number of tokens of every sequence.
        """
        mine: list[Any] = []  # (sequence, positions in it, layers, routes [positions, layers, topk])
        for chunk, layers in enumerate(self._layers):
            for sequences, microbatch, routes in zip(members, microbatches, self._recorded[chunk], strict=True):
                for index, positions, rows in self._by_sequence(sequences, microbatch):
                    mine.append((index, positions.numpy(), layers, routes[rows].numpy().astype(self.shape.dtype)))
        parts = [part for of_rank in holders.gather(mine) for part in of_rank]
        shape = (self.shape.num_layers, self.shape.topk)
        whole = {index: np.zeros((lengths[index], *shape), dtype=self.shape.dtype) for index, *_ in parts}
        for index, positions, layers, routes in parts:
            whole[index][positions[:, None], layers] = routes
        return {index: pack_routes(routes, self.shape.num_experts) for index, routes in whole.items()}

    def _by_sequence(
        self, members: Sequence[int], microbatch: Microbatch
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yields (sequence, positions in it, rows of this rank's routers) of what this rank routes of a microbatch."""
        rank, num_ranks = parallel_state.get_context_parallel_rank(), parallel_state.get_context_parallel_world_size()
        held = zigzag(microbatch.cu_seqlens.tolist(), rank, num_ranks)
        held = held[self._rows(len(held))]
        for index, spans in zip(members, microbatch.spans, strict=True):
            for start, position, count in spans:
                rows = ((held >= start) & (held < start + count)).nonzero()[:, 0]
                if len(rows):
                    yield index, held[rows] - start + position, rows
