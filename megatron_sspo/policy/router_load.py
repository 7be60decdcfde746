"""`RouterLoad`: how evenly the routers spread an update's tokens over the experts, as metrics."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.utils import unwrap_model

from megatron_sspo.batching.microbatch import Microbatch

_LOSSES = ("load_balancing_loss", "global_load_balancing_loss")  # names in Megatron's tracker


def rows_of_routers(num_tokens: int, *, sequence_parallel: bool) -> slice:
    """Returns which of a context-parallel rank's tokens pass this rank's routers."""
    if not sequence_parallel:
        return slice(None)
    part = num_tokens // parallel_state.get_tensor_model_parallel_world_size()
    first = parallel_state.get_tensor_model_parallel_rank() * part
    return slice(first, first + part)


class RouterLoad:
    """Counts the tokens that each expert gets in the forward passes of an update.

    A token counts once for each sequence that it is part of, and padding not at all, so the numbers do not depend on
    the layout. A pass that recomputes activations does not count.
    """

    def __init__(self, chunks: Sequence[Any]) -> None:
        models: list[Any] = [unwrap_model(chunk) for chunk in chunks]
        self._config = models[0].config
        self._uses: torch.Tensor | None = None  # [tokens of this rank's routers] during a forward pass that counts
        device = next(models[0].parameters()).device
        shape = (self._config.num_layers, self._config.num_moe_experts or 0)
        self._tokens = torch.zeros(shape, dtype=torch.float64, device=device)  # by layer and expert
        for router in (module for model in models for module in model.modules() if isinstance(module, TopKRouter)):
            router.register_forward_hook(self._count)

    def begin(self) -> None:
        """Begins an update."""
        self._tokens.zero_()
        _recorded_losses().clear()  # which may have the layers of another model of this process

    @contextmanager
    def forward(self, microbatch: Microbatch) -> Iterator[None]:
        """Counts the tokens of one forward pass, if gradients are computed."""
        if torch.is_grad_enabled():
            rows = rows_of_routers(len(microbatch.uses), sequence_parallel=self._config.sequence_parallel)
            self._uses = microbatch.uses[rows]
        yield
        self._uses = None

    def _count(self, router: Any, _: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        if self._uses is not None:
            self._tokens[router.layer_number - 1] += (output[1] * self._uses[:, None]).sum(dim=0)
        if router.expert_bias is not None and torch.is_grad_enabled():
            # by which Megatron moves the bias; its own count has padding, and tokens of a shared prompt once
            router.local_tokens_per_expert.copy_(self._tokens[router.layer_number - 1])

    def metrics(self, *, num_microbatches: int) -> dict[str, float]:
        """Returns the metrics of the update; none for a model without experts. A collective."""
        if not self._config.num_moe_experts:
            return {}
        zeros = self._tokens.new_zeros(len(self._tokens))
        found = {
            name: entry["values"] if isinstance(entry, dict) else entry.values
            for name, entry in _recorded_losses().items()
        }
        losses = [found[name].to(zeros) if name in found else zeros for name in _LOSSES]
        sums = torch.cat([self._tokens, torch.stack(losses, dim=1)], dim=1)
        dist.all_reduce(sums)
        if not sums.any():  # all responses are empty
            return {}
        by_layer = sums[sums.any(dim=1)].cpu()  # layers with experts
        tokens, losses = by_layer[:, : -len(_LOSSES)], by_layer[:, -len(_LOSSES) :].mean(dim=0) / num_microbatches
        losses[0] /= parallel_state.get_data_parallel_world_size()  # of each data-parallel rank's own tokens
        largest = tokens.amax(dim=1) / tokens.mean(dim=1)
        return {
            "router/max_load": float(largest.mean()),
            "router/max_load_worst_layer": float(largest.max()),
            "router/unused_experts": float((tokens == 0).double().mean()),
            **{f"router/{name}": float(loss) for name, loss in zip(_LOSSES, losses, strict=True) if loss},
        }


def _recorded_losses() -> dict[str, Any]:
    """Returns Megatron's record of routers' losses by layer, to which it adds whatever is missing."""
    newer: Any = getattr(moe_utils, "get_moe_metrics_tracker", None)
    return moe_utils.get_moe_layer_wise_logging_tracker() if newer is None else newer().metrics
