"""What the loop asks of whatever generates the responses."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.types import Prompt, RolloutGroup
from megatron_sspo.validation.kinds import Count, NotNegative, Probability, StopString


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the responses are drawn. `temperature` 0 is greedy decoding."""

    max_tokens: Count = 512  # of the response; of several turns all together, with the observations between them
    temperature: NotNegative = 1.0
    top_p: Probability = 1.0
    stop: tuple[StopString, ...] = ()  # strings that end a response; the string itself is kept


class NeedsWeights(Exception):
    """Responses cannot go on before `load_weights` is called again: servers have failed, and others have come up.

    What is generated already is kept; ask again after `load_weights`.
    """


class Generation(Protocol):
    """Groups of responses under way."""

    def wait(self) -> list[tuple[int, RolloutGroup]]:
        """Waits for a group, and returns those that are complete by now, each with its prompt's place.

        Empty when all have been returned.

        Raises:
            NeedsWeights: an engine that is not replicated has lost them.
            UserError: a response cannot be had.
        """
        ...

    def cancel(self) -> None:
        """Gives up what has not been returned."""
        ...


class RolloutEngine(Protocol):
    """Generates responses under the weights that it was last given."""

    replicated: bool
    """Every trainer process holds an engine and serves its share of the prompts; otherwise rank 0 drives servers."""

    def start(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        environment: Environment | None = None,
    ) -> Generation:
        """Begins `group_size` responses to each prompt.

        In an environment every response is a turn, which ends as a response does; then the observation is appended and
        the next turn begins, until there is no observation or `sampling.max_tokens` are used up. An observation that
        leaves no room for another token ends the rollout with finish reason "length", and is not kept. No episode is
        left open, whatever happens.

        An engine that is replicated generates when it is waited for; servers begin at once, and go on, under the new
        weights, when weights are loaded meanwhile.

        Of a replicated engine the same weights, prompt, sampling and seed give the same response, whatever else is in
        the batch, up to the rounding that a batch's shape brings.
        """
        ...

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """Replaces all weights by a stream of Hugging Face-named tensors.

        Raises:
            UserError: a weight of the model is missing from the stream, or the stream has one that the model lacks.
        """
        ...

    def rest(self) -> None:
        """Nothing will be asked before the next `load_weights`: memory that training can use may be given back."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers by name, of what was done since the last call."""
        ...

    def close(self) -> None:
        """Gives back processes, memory and ports."""
        ...


class AtOnce:
    """The generation of an engine that has all groups at once: they are made when they are waited for.

    Args:
        generate: returns a group for each prompt, in the prompts' order.
    """

    def __init__(self, generate: Callable[[], Sequence[RolloutGroup]]) -> None:
        self._generate: Callable[[], Sequence[RolloutGroup]] | None = generate

    def wait(self) -> list[tuple[int, RolloutGroup]]:
        """All groups, the first time."""
        generate, self._generate = self._generate, None
        return list(enumerate(generate())) if generate is not None else []

    def cancel(self) -> None:
        """They are not made any more."""
        self._generate = None


class InBatches:
    """The generation of an engine that makes one batch after the other: each when it is waited for.

    Args:
        batches: yields groups that are complete, each with its prompt's place; never none.
    """

    def __init__(self, batches: Generator[list[tuple[int, RolloutGroup]], None, None]) -> None:
        self._batches = batches

    def wait(self) -> list[tuple[int, RolloutGroup]]:
        """The groups that the next batch completes."""
        return next(self._batches, [])

    def cancel(self) -> None:
        """The other batches are not made any more."""
        self._batches.close()
