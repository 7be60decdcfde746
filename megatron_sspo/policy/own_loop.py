"""The objective for Megatron training loops that are not ours: how to pack a batch, and the loss hook."""

from collections.abc import Mapping, Sequence
from typing import Any

from megatron.core import parallel_state

from megatron_sspo.batching.microbatch import Microbatch, make_microbatch
from megatron_sspo.objective import Correction, Penalties
from megatron_sspo.policy.distributed import context_group, tensor_group
from megatron_sspo.policy.forward_step import ForwardStep, Objective, loss_scale, policy_loss
from megatron_sspo.types import Rollout

_NO_PENALTIES, _NO_CORRECTION = Penalties(), Correction()


def pack_rollouts(rollouts: Sequence[Mapping[str, Any]], *, sequence_parallel: bool = False) -> Microbatch:
    """Packs rollouts into one microbatch, this context-parallel rank's share of it.

    Args:
        rollouts: of each `prompt` and `response`, token ids; `advantage`, Â; `old`, log π_old of each response token
            under the trainer's model and the temperature that `policy_step` is given, or absent from all of them where
            the policy has not moved; and for an engine correction `engine`, for a KL penalty `reference`: the
            log-probs of the engine and of the reference policy. Of a response of several turns `observed`, [first,
            beyond) of each part that the policy did not sample; log-probs are not looked at there.
        sequence_parallel: whether the model cuts activations along the sequence over tensor-parallel ranks.

    Raises:
        ValueError: log-probs that are not one a response token, or on some rollouts only.
    """
    sequences = []
    for number, given in enumerate(rollouts):
        length = len(given["response"])
        values = {name: tuple(given[name]) for name in ("old", "engine", "reference") if given.get(name) is not None}
        wrong = [name for name, found in values.items() if len(found) != length]
        if wrong:
            raise ValueError(
                f"rollout {number} has {len(values[wrong[0]])} values of {wrong[0]!r}, and {length} response tokens"
            )
        rollout = Rollout(
            tokens=tuple(given["response"]),
            rollout_log_probs=values.get("engine", values.get("old", (0.0,) * length)),
            text="",
            finish_reason="stop",
            policy_version=0,
            advantage=float(given["advantage"]),
            old_log_probs=values.get("old"),
            reference_log_probs=values.get("reference"),
            observed=tuple(given.get("observed", ())),
        )
        sequences.append((tuple(given["prompt"]), rollout))
    return make_microbatch(
        sequences,
        tensor_shards=parallel_state.get_tensor_model_parallel_world_size() if sequence_parallel else 1,
        context_rank=parallel_state.get_context_parallel_rank(),
        context_size=parallel_state.get_context_parallel_world_size(),
    )


def policy_step(
    objective: Objective,
    *,
    num_sequences: int,
    num_microbatches: int,
    vocab_size: int,
    temperature: float = 1.0,
    penalties: Penalties = _NO_PENALTIES,
    correction: Correction = _NO_CORRECTION,
    overlap_grad_reduce: bool = False,
) -> ForwardStep:
    """A `forward_step_func` for `get_forward_backward_func()`; its data iterators yield what `pack_rollouts` returns.

    What ends up in the gradient buffers is the gradient of −J, J the mean of w_i Â_i over `num_sequences`, however
    the sequences are spread over ranks and microbatches.

    Args:
        num_sequences: of the whole batch, over all data-parallel ranks.
        num_microbatches: what the schedule is given, the same on every rank.
        vocab_size: without padding.
        temperature: of the distribution that the responses were sampled from.
        overlap_grad_reduce: what the DDP was configured with.

    Raises:
        RuntimeError: Megatron's model-parallel groups are not initialized.
    """
    if not parallel_state.model_parallel_is_initialized():
        raise RuntimeError("call megatron.core.parallel_state.initialize_model_parallel before policy_step")
    scale = loss_scale(num_microbatches=num_microbatches, num_sequences=num_sequences)
    return ForwardStep(
        policy_loss(objective, penalties, correction, scale=scale),
        temperature=temperature,
        vocab_size=vocab_size,
        tensor_group=tensor_group(),
        context_group=context_group() if parallel_state.get_context_parallel_world_size() > 1 else None,
        overlap_grad_reduce=overlap_grad_reduce,
    )
