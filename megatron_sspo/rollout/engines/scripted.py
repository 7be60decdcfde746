"""Deterministic engine for tests: it answers from a script and records the weights that it receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import Generation, SingleBatchGeneration
from megatron_sspo.types import FinishReason, Prompt, Rollout, RolloutGroup, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Script = Callable[[Prompt, int], str] | Mapping[str, Sequence[str]]


def engine(
    responses: Script,
    tokenizer: PreTrainedTokenizerBase,
    *,
    log_probs: float | Callable[[Prompt, int], Sequence[float]] = -1.0,
) -> ScriptedEngine:
    """Builds an engine with scripted responses.

    Args:
        responses: texts of the responses: a function of the prompt and the index i in the group, or a mapping from
            prompt ids to lists of responses. A list is repeated from the start if the group is larger.
        tokenizer: the tokenizer of the responses.
        log_probs: log-probs of a response's tokens, end-of-sequence included: a function of the prompt and i, or one
            number for all tokens.
    """
    return ScriptedEngine(responses, tokenizer, log_probs)


@dataclass(frozen=True, slots=True)
class WeightLoad:
    """One call of `load_weights`."""

    policy_version: int
    names: tuple[str, ...]  # in the stream's order


class ScriptedEngine:
    """An engine that appends the end-of-sequence token to scripted responses and cuts them at `max_tokens`."""

    replicated = True

    def __init__(
        self,
        responses: Script,
        tokenizer: PreTrainedTokenizerBase,
        log_probs: float | Callable[[Prompt, int], Sequence[float]],
    ) -> None:
        self._responses = responses
        self._tokenizer = tokenizer
        self._log_probs = log_probs
        self.weight_loads: list[WeightLoad] = []

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Reads the stream to its end and keeps its names in `weight_loads`."""
        self.weight_loads.append(WeightLoad(policy_version, tuple(name for name, _ in tensors)))

    def start(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        environment: Environment | None = None,
    ) -> Generation:
        """Returns a generation that calls `generate` in `wait`.

        Raises:
            UserError: an environment is given.
        """
        if environment is not None:
            raise UserError("the scripted engine answers in one turn: choose another engine, or no environment")
        return SingleBatchGeneration(lambda: self.generate(prompts, sampling, group_size=group_size, seed=seed))

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, group_size: int, seed: int
    ) -> list[RolloutGroup]:
        """Returns the scripted responses. Temperature, top-p, stop strings and the seed have no effect.

        Raises:
            UserError: no weights were loaded, the script has no response to a prompt, or the number of log-probs is
                not the number of tokens.
        """
        if not self.weight_loads:
            raise UserError("the scripted engine has no weights: call load_weights before generate")
        return [
            RolloutGroup(
                prompt=prompt,
                rollouts=[self._rollout(prompt, index, sampling.max_tokens) for index in range(group_size)],
            )
            for prompt in prompts
        ]

    def release_memory(self) -> None:
        """Does nothing."""

    def metrics(self) -> dict[str, float]:
        """Returns no metrics."""
        return {}

    def close(self) -> None:
        """Does nothing."""

    def _rollout(self, prompt: Prompt, index: int, max_tokens: int) -> Rollout:
        tokens = self._tokenizer.encode(self._text(prompt, index), add_special_tokens=False)
        if isinstance(end := self._tokenizer.eos_token_id, int):
            tokens.append(end)
        if callable(self._log_probs):
            log_probs = list(self._log_probs(prompt, index))
        else:
            log_probs = [self._log_probs] * len(tokens)
        if len(log_probs) != len(tokens):
            raise UserError(
                f"the script gives {len(log_probs)} log-probs for the {len(tokens)} tokens of response {index} "
                f"to prompt {prompt.id}: give one for each, end-of-sequence included"
            )
        finish_reason: FinishReason = "stop" if len(tokens) <= max_tokens else "length"
        tokens = tokens[:max_tokens]
        return Rollout(
            tokens=tuple(tokens),
            rollout_log_probs=tuple(log_probs[:max_tokens]),
            text=str(self._tokenizer.decode(tokens, skip_special_tokens=True)),
            finish_reason=finish_reason,
            policy_version=self.weight_loads[-1].policy_version,
        )

    def _text(self, prompt: Prompt, index: int) -> str:
        if callable(self._responses):
            return self._responses(prompt, index)
        texts = self._responses.get(prompt.id)
        if not texts:
            raise UserError(f"the script has no response to prompt {prompt.id}: add one")
        return texts[index % len(texts)]
