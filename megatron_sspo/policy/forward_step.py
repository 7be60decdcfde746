"""The seam into Megatron's schedules: a microbatch through the model, and the loss hook at its end."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams

from megatron_sspo.batching.microbatch import Microbatch
from megatron_sspo.objective import Correction, Penalties, Sums
from megatron_sspo.policy.context import gather_responses
from megatron_sspo.policy.log_probs import log_probs_and_entropy

Objective = Callable[..., Sums]
Loss = Callable[[Microbatch, torch.Tensor, torch.Tensor], tuple[Any, ...]]
"""(microbatch, log-probs [R], entropy [R]) -> what Megatron's schedule wants of a loss function."""


class ForwardStep:
    """Megatron's `forward_step_func`: called by the schedule once a microbatch and model chunk."""

    def __init__(
        self,
        loss: Loss,
        *,
        temperature: float,
        vocab_size: int,
        tensor_group: dist.ProcessGroup | None,
        context_group: dist.ProcessGroup | None,
    ) -> None:
        self.loss = loss
        self.temperature = temperature
        self.vocab_size = vocab_size
        self.tensor_group = tensor_group
        self.context_group = context_group

    def __call__(self, microbatches: Iterator[Microbatch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        """The output of this pipeline stage, and the loss function that the schedule calls on the last stage."""
        microbatch = next(microbatches)
        packed = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=microbatch.cu_seqlens,
            cu_seqlens_kv=microbatch.cu_seqlens,
            max_seqlen_q=microbatch.longest,
            max_seqlen_kv=microbatch.longest,
        )
        output = model(
            input_ids=microbatch.tokens[None],
            position_ids=microbatch.position_ids[None],
            attention_mask=None,
            packed_seq_params=packed,
        )
        return output, partial(self._loss_of_logits, microbatch)

    def _loss_of_logits(self, microbatch: Microbatch, logits: torch.Tensor) -> tuple[Any, ...]:
        log_probs, entropy = log_probs_and_entropy(
            logits[0][microbatch.response_rows],
            microbatch.response_tokens,
            temperature=self.temperature,
            vocab_size=self.vocab_size,
            group=self.tensor_group,
        )
        if self.context_group is not None:
            log_probs, entropy = (
                gather_responses(values, microbatch.context_counts, microbatch.context_order, self.context_group)
                for values in (log_probs, entropy)
            )
        return self.loss(microbatch, log_probs, entropy)


def report_log_probs(microbatch: Microbatch, log_probs: torch.Tensor, entropy: torch.Tensor) -> tuple[Any, ...]:
    """The loss function of a forward pass that only asks for log-probs."""
    return log_probs.sum(), {"log_probs": log_probs.detach()}


def policy_loss(objective: Objective, penalties: Penalties, correction: Correction, *, scale: float) -> Loss:
    """The loss hook: −Σ_i w_i Â_i + penalties, times `scale`.

    Args:
        scale: number of microbatches × data- and context-parallel ranks / global number of sequences. Megatron divides
            a loss by the number of microbatches and averages gradients over those ranks; this undoes both, and what
            remains is the one division by the number of sequences in the whole batch, fixed before the batch is split.
            So the gradient is the same for every layout.

    Returns:
        A loss function that returns Megatron's 3-tuple `(loss, 1, metrics)`. With `calculate_per_token_loss=False` its
        second element is one more divisor, hence 1.
    """

    def loss(microbatch: Microbatch, log_probs: torch.Tensor, entropy: torch.Tensor) -> tuple[Any, ...]:
        old = microbatch.old_log_probs
        if old is None:
            old = log_probs.detach()
        corrected = correction.apply(log_probs, old, microbatch.rollout_log_probs, microbatch.segments)
        sums = objective(corrected, old, microbatch.advantages, microbatch.segments)
        total = sums.loss + penalties(log_probs, entropy, None, microbatch.segments)
        tokens = {
            **sums.tokens,
            "entropy": entropy.detach(),
            "engine_difference": old - microbatch.rollout_log_probs,
        }
        metrics = {"loss": total.detach().clone(), "tokens": tokens, "sequences": sums.sequences}
        return total * scale, torch.ones((), dtype=torch.int, device=total.device), metrics

    return loss
