"""The objective for other Megatron training loops: how to pack a batch, and the loss hook."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.utils import unwrap_model

from megatron_sspo.batching.microbatch import Microbatch, make_microbatch
from megatron_sspo.objective import Correction, Penalties
from megatron_sspo.objective.average import average_of, counts_tokens
from megatron_sspo.policy.forward_step import ForwardStep, Objective, loss_scale, policy_loss
from megatron_sspo.types import Rollout

_REQUIRED = ("prompt", "response", "advantage")
_TOKEN_VALUES = ("old", "old_entropy", "engine", "reference")
_KEYS = (*_REQUIRED, *_TOKEN_VALUES, "observed")
_NO_PENALTIES, _NO_CORRECTION = Penalties(), Correction()


def pack_rollouts(rollouts: Sequence[Mapping[str, Any]]) -> Microbatch:
    """Packs rollouts into one microbatch, and returns this context-parallel rank's share of it.

    The share is padded to a multiple of the tensor-parallel size, as sequence parallelism needs it.

    Args:
        rollouts: mappings with these keys.
            `prompt` and `response`: token ids. `advantage`: Â, or a number for each response token, on all rollouts.
            `old`: log π_old of each response token under the trainer's model, at the temperature that is given to
            `policy_step`. It is left out of all rollouts if the policy has not moved.
            `engine`, for an engine correction, and `reference`, for a KL penalty: the log-probs of the engine and of
            the reference policy, on all rollouts or on none. `old_entropy`, for an objective that needs it: the
            entropies of π_old.
            `observed`, for a response of several turns: [first, beyond) of each part that the policy did not sample.
            Log-probs there are ignored.

    Raises:
        RuntimeError: Megatron's model-parallel groups are not initialized.
        ValueError: a key is missing or unknown, or only some rollouts have log-probs.
        UserError: tokens are no integers, or there is not one value for each response token.
    """
    _check_groups("pack_rollouts")
    with_engine = [given.get("engine") is not None for given in rollouts]
    if any(with_engine) and not all(with_engine):
        raise ValueError("some rollouts of a batch have 'engine' and some have none")
    sequences = [_sequence(number, given) for number, given in enumerate(rollouts)]
    microbatch = make_microbatch(
        sequences,
        tensor_shards=parallel_state.get_tensor_model_parallel_world_size(),
        context_rank=parallel_state.get_context_parallel_rank(),
        context_size=parallel_state.get_context_parallel_world_size(),
    )
    return microbatch if all(with_engine) else replace(microbatch, rollout_log_probs=None)


def _sequence(number: int, given: Mapping[str, Any]) -> tuple[tuple[int, ...], Rollout]:
    """Returns the prompt and the rollout of a mapping for `pack_rollouts`."""
    if missing := [name for name in _REQUIRED if given.get(name) is None]:
        raise ValueError(f"rollout {number} has no {missing[0]!r}")
    if unknown := [name for name in given if name not in _KEYS]:
        raise ValueError(f"rollout {number} has {unknown[0]!r}, and its keys may be {', '.join(_KEYS)}")
    observed = given.get("observed")
    observed = tuple(map(tuple, np.asarray([] if observed is None else observed).tolist()))
    prompt, response = (np.asarray(_on_cpu(given[name])) for name in ("prompt", "response"))
    values = {
        name: _numbers(given[name], observed) for name in ("advantage", *_TOKEN_VALUES) if given.get(name) is not None
    }
    advantage = values["advantage"]
    rollout = Rollout(
        tokens=response,
        rollout_log_probs=values.get("engine", np.zeros(len(response))),
        text="",
        finish_reason="stop",
        policy_version=0,
        advantage=float(np.mean(advantage)) if len(response) else 0.0,
        token_advantages=advantage if advantage.ndim else None,
        old_log_probs=values.get("old"),
        old_entropy=values.get("old_entropy"),
        reference_log_probs=values.get("reference"),
        observed=observed,
    )
    return tuple(prompt.tolist()), rollout


def _numbers(given: Any, observed: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Returns a number for each response token, or one advantage, with 0 at tokens that the policy did not sample."""
    values = np.array(_on_cpu(given), dtype=np.float64)
    if values.ndim:
        for first, beyond in observed:
            values[first:beyond] = 0.0
    return values


def _on_cpu(given: Any) -> Any:
    if not isinstance(given, torch.Tensor):
        return given
    given = given.detach().cpu()
    return (given.double() if given.is_floating_point() else given).numpy()  # NumPy has no bfloat16


def policy_step(
    objective: Objective,
    *,
    num_sequences: int,
    num_microbatches: int,
    vocab_size: int,
    num_tokens: int = 0,
    temperature: float = 1.0,
    penalties: Penalties = _NO_PENALTIES,
    correction: Correction = _NO_CORRECTION,
    overlap_grad_reduce: bool = False,
) -> ForwardStep:
    """Returns a `forward_step_func` for Megatron's schedule; its data iterators yield results of `pack_rollouts`.

    The gradient buffers then have the gradient of −J, where J is the average of w_i Â_i that the objective names, over
    the whole batch, however the sequences are spread over ranks and microbatches.

    Args:
        num_sequences: the number of sequences of the whole batch, over all data-parallel ranks.
        num_microbatches: the number that the schedule is given, the same on every rank.
        vocab_size: the vocabulary size without padding.
        num_tokens: the number of response tokens of the whole batch, for an objective whose average is over tokens;
            tokens of an environment do not count.
        temperature: the temperature at which the responses were sampled.
        overlap_grad_reduce: the value in the DDP's configuration.

    Raises:
        RuntimeError: Megatron's model-parallel groups are not initialized.
        ValueError: the average is over tokens, and `num_tokens` is missing.
    """
    _check_groups("policy_step")
    if num_tokens < 1 and counts_tokens(objective):
        raise ValueError(
            "the objective's average is over the response tokens of the whole batch: give policy_step num_tokens"
        )
    divisor = average_of(objective).divisor(num_sequences, num_tokens)
    scale = loss_scale(num_microbatches=num_microbatches, divisor=divisor)
    return _OwnLoopStep(
        loss=policy_loss(objective, penalties, correction, scale=scale),
        temperature=temperature,
        vocab_size=vocab_size,
        overlap_grad_reduce=overlap_grad_reduce,
    )


def _check_groups(caller: str) -> None:
    if not parallel_state.model_parallel_is_initialized():
        raise RuntimeError(f"call megatron.core.parallel_state.initialize_model_parallel before {caller}")


class _OwnLoopStep(ForwardStep):
    """A forward step that first checks the model's configuration, because this package did not make it.

    It refuses layouts in which ranks have to know the length of another's row, which `pack_rollouts` does not fix.
    """

    def __call__(self, microbatches: Iterator[Microbatch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        chunk: Any = unwrap_model(model)
        transformer = chunk.config
        if parallel_state.get_pipeline_model_parallel_world_size() > 1 and not transformer.variable_seq_lengths:
            raise ValueError(
                "rows of pack_rollouts differ in length, and the stages of this pipeline expect rows of one length: in "
                "the model's TransformerConfig set variable_seq_lengths to True, and moe_token_dispatcher_type to "
                "'alltoall', without which Megatron refuses the former"
            )
        experts_are_shared = transformer.num_moe_experts and parallel_state.get_expert_model_parallel_world_size() > 1
        if experts_are_shared and transformer.moe_token_dispatcher_type == "allgather":
            raise ValueError(
                "rows of pack_rollouts differ in length, and expert-parallel ranks gather rows of one length with the "
                "'allgather' dispatcher: in the model's TransformerConfig set moe_token_dispatcher_type to 'alltoall'"
            )
        return super().__call__(microbatches, model)
