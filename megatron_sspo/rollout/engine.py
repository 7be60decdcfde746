"""The interface of a rollout engine, which generates the responses."""

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

import torch

from megatron_sspo.agent.agents import Agents
from megatron_sspo.environment.protocol import Environment
from megatron_sspo.types import Prompt, RolloutGroup, Sampling


class NeedsWeights(Exception):
    """Raised if generation cannot continue before `load_weights`: servers failed, and restarted ones have no weights.

    Tokens that were generated already are kept. Call `wait` again after `load_weights`.
    """


class Generation(Protocol):
    """Groups of responses that are being generated."""

    def wait(self) -> list[tuple[int, RolloutGroup]]:
        """Waits for a group, and returns all completed groups, each with the index of its prompt.

        The list is empty if all groups have been returned.

        Raises:
            NeedsWeights: no server is left that holds the weights (not raised by a replicated engine).
            UserError: a response cannot be generated.
        """
        ...

    def cancel(self) -> None:
        """Cancels the groups that have not been returned."""
        ...


class RolloutEngine(Protocol):
    """An engine that generates responses with the weights of the last `load_weights`."""

    replicated: bool
    """True if every trainer process has its own engine for its share of the prompts; False if rank 0 drives servers."""

    def start(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        environment: Environment | Agents | None = None,
    ) -> Generation:
        """Begins `group_size` responses to each prompt.

        In an environment a rollout has several turns, each of which ends like a response. After a turn the observation
        is appended and the next turn begins, until `observe` returns None or `sampling.max_tokens` tokens are used. An
        observation that leaves no room for another token is not kept, and ends the rollout with finish reason
        "length". All episodes are closed at the end, even after an error.

        Agents make requests of their own, which the engine answers: see `rollout/agents`.

        A replicated engine generates inside `wait`. Servers begin at once; if weights are loaded meanwhile, they
        continue with the new weights.

        On a replicated engine the same weights, prompt, sampling and seed give the same response, independently of the
        rest of the batch, up to rounding that depends on the batch's shape.
        """
        ...

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """Replaces all weights by a stream of tensors with Hugging Face names.

        Raises:
            UserError: a weight of the model is missing from the stream, or the stream has one that the model lacks.
        """
        ...

    def release_memory(self) -> None:
        """Releases memory for training, unless responses are being generated.

        No generation starts before the next `load_weights`. Like `load_weights`, it is called by every process at the
        same place.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Returns metrics since the last call, by name."""
        ...

    def close(self) -> None:
        """Releases processes, memory and ports."""
        ...


class BatchedGeneration:
    """The generation of an engine that makes one batch per call of `wait`.

    Args:
        batches: generator of non-empty lists of completed groups, each group with the index of its prompt.
    """

    def __init__(self, batches: Generator[list[tuple[int, RolloutGroup]], None, None]) -> None:
        self._batches = batches

    def wait(self) -> list[tuple[int, RolloutGroup]]:
        """Returns the groups that the next batch completes."""
        return next(self._batches, [])

    def cancel(self) -> None:
        """Prevents the remaining batches from being generated."""
        self._batches.close()
