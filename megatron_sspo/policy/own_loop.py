"""The objective for Megatron training loops that are not ours: how to pack a batch, and the loss hook."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import unwrap_model

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
            log-probs of the engine and of the reference policy, on all rollouts or on none. Of a response of several
            turns `observed`, [first, beyond) of each part that the policy did not sample; log-probs are not looked at
            there.
        sequence_parallel: whether the model cuts activations along the sequence over tensor-parallel ranks.

    Raises:
        ValueError: log-probs that are not one a response token, or on some rollouts only.
    """
    with_engine = [given.get("engine") is not None for given in rollouts]
    if any(with_engine) and not all(with_engine):
        raise ValueError("some rollouts of a batch have 'engine' and some have none")
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
            rollout_log_probs=values.get("engine", (0.0,) * length),
            text="",
            finish_reason="stop",
            policy_version=0,
            advantage=float(given["advantage"]),
            old_log_probs=values.get("old"),
            reference_log_probs=values.get("reference"),
            observed=tuple(given.get("observed", ())),
        )
        sequences.append((tuple(given["prompt"]), rollout))
    microbatch = make_microbatch(
        sequences,
        tensor_shards=parallel_state.get_tensor_model_parallel_world_size() if sequence_parallel else 1,
        context_rank=parallel_state.get_context_parallel_rank(),
        context_size=parallel_state.get_context_parallel_world_size(),
    )
    return microbatch if all(with_engine) else replace(microbatch, rollout_log_probs=None)


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
    return _OwnLoopStep(
        policy_loss(objective, penalties, correction, scale=scale),
        temperature=temperature,
        vocab_size=vocab_size,
        tensor_group=tensor_group(),
        context_group=context_group() if parallel_state.get_context_parallel_world_size() > 1 else None,
        overlap_grad_reduce=overlap_grad_reduce,
    )


class _OwnLoopStep(ForwardStep):
    """Looks at the configuration first: nobody else has, of a model that is not ours."""

    def __call__(self, microbatches: Iterator[Microbatch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        chunk: Any = unwrap_model(model)
        _check_that_rows_may_differ(chunk.config)
        return super().__call__(microbatches, model)


def _check_that_rows_may_differ(transformer: TransformerConfig) -> None:
    """Refuses layouts in which ranks have to know the length of another's row, which `pack_rollouts` leaves open.

    Raises:
        ValueError: with the options to set.
    """
    if parallel_state.get_pipeline_model_parallel_world_size() > 1 and not transformer.variable_seq_lengths:
        raise ValueError(
            "rows of pack_rollouts differ in length, and the stages of this pipeline expect rows of one length: in the "
            "model's TransformerConfig set variable_seq_lengths to True, and moe_token_dispatcher_type to 'alltoall', "
            "without which Megatron refuses the former"
        )
    experts_are_shared = transformer.num_moe_experts and parallel_state.get_expert_model_parallel_world_size() > 1
    if experts_are_shared and transformer.moe_token_dispatcher_type == "allgather":
        raise ValueError(
            "rows of pack_rollouts differ in length, and expert-parallel ranks gather rows of one length with the "
            "'allgather' dispatcher: in the model's TransformerConfig set moe_token_dispatcher_type to 'alltoall'"
        )
