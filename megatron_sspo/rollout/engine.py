"""What the loop asks of whatever generates the responses."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from megatron_sspo.types import Prompt, RolloutGroup


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the responses are drawn. `temperature` 0 is greedy decoding."""

    max_tokens: int = 512  # of the response
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()  # strings that end a response; the string itself is kept


class NeedsWeights(Exception):
    """`generate` cannot go on before `load_weights` is called again: servers have failed, and others have come up.

    What is generated already is kept. The next call of `generate`, with the same arguments, goes on from there.
    """


class RolloutEngine(Protocol):
    """Generates responses under the weights that it was last given."""

    replicated: bool
    """Every trainer process holds an engine and serves its share of the prompts; otherwise rank 0 drives servers."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, group_size: int, seed: int
    ) -> list[RolloutGroup]:
        """`group_size` responses to each prompt, in the prompts' order.

        The same weights, prompt, sampling and seed give the same response, whatever else is in the batch, up to the
        rounding that a batch's shape brings.

        Raises:
            NeedsWeights: an engine that is not replicated has lost them.
        """
        ...

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """Replaces all weights by a stream of Hugging Face-named tensors.

        Raises:
            UserError: a weight of the model is missing from the stream, or the stream has one that the model lacks.
        """
        ...

    def close(self) -> None:
        """Gives back processes, memory and ports."""
        ...
