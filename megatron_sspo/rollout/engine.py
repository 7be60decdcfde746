"""The interface of a rollout engine, which generates the responses."""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.errors import UserError
from megatron_sspo.types import FinishReason, Prompt, RolloutGroup, Sampling


class NeedsWeights(Exception):
    """Raised if generation cannot continue before `load_weights`: servers failed, and restarted ones have no weights.

    Tokens that were generated already are kept. Call `wait` again after `load_weights`.
    """


class SchemaRejected(UserError):
    """Raised by a sampler whose engine cannot follow a JSON schema."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The tokens that the policy sampled in one turn."""

    tokens: Sequence[int]
    log_probs: Sequence[float]  # one for each token
    finish_reason: FinishReason
    spans: Sequence[tuple[int, int]]  # (policy version, number of consecutive tokens that it sampled)
    routes: np.ndarray | None = None  # of the turn's prompt and tokens, as in `Rollout`


class Sampler(Protocol):
    """Samples the turns of one rollout, with the sampling parameters of the generation; each engine has its own."""

    takes_schemas: bool
    """Whether it samples JSON of a given schema."""

    async def sample(
        self, prompt: Sequence[int], *, max_tokens: int, stop: tuple[str, ...] = (), number: int = 0, schema: str = ""
    ) -> Sampled:
        """Samples one turn. Cancelling it cancels the request.

        Args:
            prompt: all tokens before the turn.
            max_tokens: the largest number of tokens of the turn.
            stop: further strings that end the turn.
            number: the number of the turn in its episode, from 0.
            schema: JSON schema that the turn must follow; "": any text.

        Raises:
            SchemaRejected: the engine cannot follow the schema.
            UserError: the engine cannot generate; the run ends.
        """
        ...

    async def split_reasoning(self, text: str) -> tuple[str, str] | None:
        """Returns the content and the reasoning of an answer to an agent; None if the engine has no parser of them."""
        ...

    async def find_calls(
        self, text: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[tuple[str, str]]] | None:
        """Returns an answer's content, and the name and the arguments (JSON) of its calls; None: see above."""
        ...


@dataclass(frozen=True, slots=True)
class ModelText:
    """The text side of an engine's model."""

    tokenizer: Any
    end_tokens: Collection[int]  # the tokens that end a response
    max_positions: int  # the largest number of tokens of a sequence
    vocab_size: int

    def check(self, prompt: Prompt) -> None:
        """Raises UserError if a prompt is empty or leaves no room for a response."""
        if not 0 < len(prompt.tokens) < self.max_positions:
            raise UserError(
                f"prompt {prompt.id} has {len(prompt.tokens)} tokens and the model {self.max_positions} positions: "
                "drop or shorten it"
            )


class EpisodeRunner(Protocol):
    """Runs episodes on one engine. One event loop makes all calls."""

    has_time_limit: bool
    """Whether episodes end by themselves, so that waiting for one is no sign of a hang."""

    async def group(
        self, prompt: Prompt, sampling: Sampling, samplers: Sequence[Sampler], *, policy_version: int
    ) -> RolloutGroup:
        """Runs an episode with each sampler, at the same time, and returns their rollouts.

        A rollout in which nothing was sampled has the `policy_version`.
        """
        ...


class Episodes(Protocol):
    """Makes rollouts of several turns: an environment, or an agent."""

    stop: Sequence[str]
    """Strings that end a turn, in addition to those of the sampling parameters."""

    @property
    def lockstep(self) -> Environment | None:
        """The environment whose turns an engine may run in lockstep; None if turns are requested one by one."""
        ...

    def on(self, model: ModelText) -> EpisodeRunner:
        """Returns what runs the episodes on an engine. Raises UserError if its chat template is not usable."""
        ...

    def metrics(self) -> dict[str, float]:
        """Returns metrics since the last call, by name."""
        ...

    def close(self) -> None:
        """Releases processes and files."""
        ...


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
        environment: Episodes | None = None,
    ) -> Generation:
        """Begins `group_size` responses to each prompt.

        In an environment a rollout has several turns, each of which ends like a response. After a turn the observation
        is appended and the next turn begins, until `observe` returns None or `sampling.max_tokens` tokens are used. An
        observation that leaves no room for another token is not kept, and ends the rollout with finish reason
        "length". All episodes are closed at the end, even after an error.

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
    """The generation of an engine that makes one of `batches` per call of `wait`: completed groups, at least one."""

    def __init__(self, batches: Generator[list[tuple[int, RolloutGroup]], None, None]) -> None:
        self._batches = batches

    def wait(self) -> list[tuple[int, RolloutGroup]]:
        """Returns the groups that the next batch completes."""
        return next(self._batches, [])

    def cancel(self) -> None:
        """Prevents the remaining batches from being generated."""
        self._batches.close()
