"""The `forward_step_func` of Megatron's schedules: a microbatch through the model, and the loss hook at its end."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.moe import router
from megatron.core.utils import unwrap_model

from megatron_sspo.batching.microbatch import Microbatch
from megatron_sspo.errors import UserError
from megatron_sspo.objective import Correction, Penalties, Sums
from megatron_sspo.objective.average import average_of, shares_of
from megatron_sspo.objective.divergence import generalized_jsd, with_rest
from megatron_sspo.objective.inputs import needs_of
from megatron_sspo.policy.head.fused import FusedHead
from megatron_sspo.policy.head.head import forward_without_head, response_log_probs
from megatron_sspo.policy.shared_prompts.packed import packed_seq_params
from megatron_sspo.policy.shared_prompts.rules import has_router_losses
from megatron_sspo.processes.hang import mark_progress

if TYPE_CHECKING:
    from megatron_sspo.policy.router_load import RouterLoad
    from megatron_sspo.policy.routing_replay import RoutingReplay
    from megatron_sspo.run import Teacher

Objective = Callable[..., Sums]
Loss = Callable[..., tuple[Any, ...]]
"""(microbatch, log-probs [R], entropy [R], others of `response_log_probs`) -> what Megatron's schedule expects."""


@dataclass(eq=False, kw_only=True)
class ForwardStep:
    """Megatron's `forward_step_func`, which the schedule calls once per microbatch and model chunk."""

    head: ClassVar[type[FusedHead]] = FusedHead
    loss: Loss
    temperature: float
    vocab_size: int
    routing: "RoutingReplay | None" = None
    load: "RouterLoad | None" = None
    overlap_grad_reduce: bool = False
    top_k: int = 0  # above 0: the loss gets the likeliest tokens

    def __call__(self, microbatches: Iterator[Microbatch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        """Returns the output of this pipeline stage, and the loss function that the schedule calls on the last one."""
        mark_progress()
        chunk: Any = unwrap_model(model)
        microbatch = next(microbatches).to(next(chunk.parameters()).device)
        with (
            self.routing.forward(chunk, microbatch) if self.routing else nullcontext(),
            self.load.forward(microbatch) if self.load else nullcontext(),
        ):
            output = forward_without_head(
                model,
                chunk,
                input_ids=microbatch.tokens[None],
                position_ids=microbatch.position_ids[None],
                attention_mask=None,
                packed_seq_params=packed_seq_params(microbatch),
                **self._padding_mask(chunk, microbatch),
            )
        return output, partial(self.loss_from_hidden, microbatch, chunk)

    def _padding_mask(self, chunk: Any, microbatch: Microbatch) -> dict[str, torch.Tensor]:
        """Returns the mask that excludes padding from the routers' losses.

        Under sequence parallelism Megatron cuts the mask only where it embeds the tokens; other stages do so here.
        """
        if not has_router_losses(chunk.config):
            return {}
        _count_tokens()
        mask = microbatch.is_padding
        if chunk.config.sequence_parallel and not chunk.pre_process:
            size = parallel_state.get_tensor_model_parallel_world_size()
            mask = mask.chunk(size)[parallel_state.get_tensor_model_parallel_rank()]
        return {"padding_mask": mask[None]}

    def loss_from_hidden(self, microbatch: Microbatch, chunk: Any, hidden: torch.Tensor) -> tuple[Any, ...]:
        """Returns the loss of a microbatch from the model's output, as Megatron's schedule expects it."""
        values = response_log_probs(
            hidden,
            chunk,
            microbatch,
            temperature=self.temperature,
            vocab_size=self.vocab_size,
            group=_shared(parallel_state.get_tensor_model_parallel_group()),
            overlap_grad_reduce=self.overlap_grad_reduce,
            head=self.head,
            top_k=self.top_k,
        )
        if (group := _shared(parallel_state.get_context_parallel_group())) is not None:
            counts, order = microbatch.context_counts, microbatch.context_order
            values = [_gather_responses(of_rank, counts, order, group) for of_rank in values]
        return self.loss(microbatch, *values)


def _gather_responses(
    values: torch.Tensor, counts: Sequence[int], order: torch.Tensor, group: dist.ProcessGroup
) -> torch.Tensor:
    """Gathers the values of all response tokens, in the order of the packed row, on every rank of the group.

    Every rank has to call this, even if it has no response token. All ranks then compute the same from the result, so
    the backward pass is a slice (`tensor_parallel_output_grad=False`): each rank keeps the gradient of its own values.
    A sum over the C ranks would count each gradient C times. The values of this rank are [r] or [r, k], and the result
    is [R] or [R, k]; `counts` and `order` are those of `gather_order`.
    """
    padded = F.pad(values, (0, 0) * (values.dim() - 1) + (0, max(counts) - len(values)))
    gathered = gather_from_sequence_parallel_region(padded, tensor_parallel_output_grad=False, group=group)
    by_rank = gathered.view(len(counts), max(counts), *values.shape[1:])
    return torch.cat([row[:count] for row, count in zip(by_rank, counts, strict=True)])[order]


@cache
def _count_tokens() -> None:
    """Makes the load-balancing losses count the tokens that are not padding as a whole number, once per process.

    They are divided by this number. Megatron computes it as a float, which Transformer Engine's fused loss refuses. It
    is at least 1 here: in a microbatch without tokens 0/0 would make the gradient of every router NaN (megatron-core
    0.16 to 0.19).
    """
    count = router.get_tokens_per_expert_and_token_count

    def count_whole(*arguments: Any, **options: Any) -> Any:
        of_experts, on_this_rank, on_all_ranks = count(*arguments, **options)
        if isinstance(on_all_ranks, torch.Tensor):  # counted from a padding mask
            on_all_ranks = on_all_ranks.round().long().clamp(min=1)
        return of_experts, on_this_rank, on_all_ranks

    router.get_tokens_per_expert_and_token_count = count_whole


def report_token_values(microbatch: Microbatch, *values: torch.Tensor) -> tuple[Any, ...]:
    """Returns the values of tokens as metrics; the loss function of a forward pass without a loss."""
    names = ("log_probs", "entropy", "top_log_probs", "top_tokens")
    return values[0].sum(), dict(zip(names, (of.detach() for of in values), strict=False))


def loss_scale(*, num_microbatches: int, divisor: float) -> float:
    """Returns the factor of a microbatch's sum over sequences, for the gradient of the average over the whole batch.

    Megatron divides a loss by the number of microbatches, and averages gradients over the data- and context-parallel
    ranks. The factor undoes both. What remains is one division by the divisor, a number of the whole batch that is
    fixed before the batch is split, so the gradient is the same for every layout.
    """
    ranks = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
    return num_microbatches * ranks / divisor


def policy_loss(
    objective: Objective,
    penalties: Penalties,
    correction: Correction,
    teacher: "Teacher | None" = None,
    *,
    scale: float,
) -> Loss:
    """Returns the loss hook: −Σ_i a_i w_i Â_i + penalties, times `scale`.

    Args:
        teacher: what the teacher's log-probs, which all rollouts then have, add to the advantages or to the loss.
        scale: the factor from `loss_scale`.

    Returns:
        A loss function that returns Megatron's 3-tuple `(loss, 1, metrics)`. With `calculate_per_token_loss=False` its
        second element is one more divisor, hence 1. It raises a UserError if an objective of the user's own raises, or
        returns something else than `Sums` of the microbatch whose loss has a gradient.
    """
    average, needs = average_of(objective), needs_of(objective)
    has_reference = penalties.kl_coef > 0 or "reference_log_probs" in needs

    def loss(
        microbatch: Microbatch, log_probs: torch.Tensor, entropy: torch.Tensor, top: torch.Tensor | None = None
    ) -> tuple[Any, ...]:
        old = microbatch.old_log_probs
        if old is None:
            old = log_probs.detach()
        corrected = correction.apply(log_probs, old, microbatch.rollout_log_probs, microbatch.segments)
        inputs = {name: _input(name, microbatch, entropy) for name in needs}
        advantages = microbatch.token_advantages
        if teacher is not None:
            assert microbatch.teacher_log_probs is not None
            of_reward = microbatch.segments.spread(microbatch.advantages) if advantages is None else advantages
            distance = microbatch.teacher_log_probs - old
            advantages = teacher.reward_weight * of_reward + (0 if teacher.top_k else teacher.coef * distance)
        sums = _evaluate(objective, corrected, old, microbatch, advantages, inputs)
        if log_probs.requires_grad and not sums.loss.requires_grad:  # the other ranks would wait in the backward pass
            raise UserError(
                "the objective returned a loss without a gradient for a microbatch: use every log-prob, if only times "
                "zero as in (0 * log_probs).sum(), instead of a constant"
            )
        reference = microbatch.reference_log_probs
        penalty = penalties(log_probs, entropy, reference, microbatch.segments, average)
        total = sums.loss + penalty
        if teacher is not None and teacher.top_k:
            assert top is not None and microbatch.teacher_top_log_probs is not None
            divergence = generalized_jsd(with_rest(microbatch.teacher_top_log_probs), top, teacher.beta)
            shares = shares_of(average, microbatch.segments)
            total = total + teacher.coef * (shares * microbatch.segments.mean(divergence)).sum()
        if advantages is None:
            advantages = microbatch.segments.spread(microbatch.advantages)
        log_ratio = (corrected - old).detach()
        tokens = {"log_ratio": log_ratio, **sums.tokens, "advantage": advantages, "entropy": entropy.detach()}
        if teacher is not None:
            tokens["teacher_difference"] = distance
            if teacher.top_k:
                tokens["teacher_divergence"] = divergence.detach()
        if microbatch.rollout_log_probs is not None:
            tokens["engine_difference"] = old - microbatch.rollout_log_probs
        if has_reference and reference is not None:  # a microbatch without sequences has values of all kinds
            tokens["reference_difference"] = reference - log_probs.detach()
        sequences = dict(sums.sequences)
        if correction.mode != "none" and microbatch.rollout_log_probs is not None:
            is_kept = correction.weights(old, microbatch.rollout_log_probs, microbatch.segments).bool().float()
            tokens["correction_kept"] = is_kept
            sequences["correction_kept"] = (microbatch.segments.sum(is_kept) > 0).float()
        sums_of = {"loss": total.detach().clone(), "penalty": penalty.detach().clone()}
        metrics = {**sums_of, "tokens": tokens, "sequences": sequences}
        return total * scale, torch.ones((), dtype=torch.int, device=total.device), metrics

    return loss


def _evaluate(
    objective: Objective,
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    microbatch: Microbatch,
    token_advantages: torch.Tensor | None,
    inputs: dict[str, torch.Tensor],
) -> Sums:
    """Calls the objective with the advantages of the sequences, or with those of the tokens if there are any."""
    segments = microbatch.segments
    if token_advantages is None:
        return objective(log_probs, old_log_probs, microbatch.advantages, segments, **inputs)
    if segments.num_tokens != segments.num_sequences:
        return objective(log_probs, old_log_probs, token_advantages, segments, **inputs)
    # [T] advantages would be taken for [S]
    sums = objective(log_probs, old_log_probs, token_advantages, segments.with_empty(), **inputs)
    return replace(sums, sequences={name: values[:-1] for name, values in sums.sequences.items()})


def _input(name: str, microbatch: Microbatch, entropy: torch.Tensor) -> torch.Tensor:
    if name == "entropy":
        return entropy
    if name == "old_entropy" and microbatch.old_log_probs is None:  # π_old is π_θ
        return entropy.detach()
    values = getattr(microbatch, name)
    if values is None:
        raise ValueError(f"the objective needs {name}, and the batch has none")
    return values


def _shared(group: Any) -> Any:
    """Returns the group of ranks that share the vocabulary, or each sequence; None if one rank has all."""
    return None if group.size() == 1 else group
