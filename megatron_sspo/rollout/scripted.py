"""Deterministic engine for tests: it answers from a script and remembers the weights that it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import AtOnce, Generation, Sampling
from megatron_sspo.types import FinishReason, Prompt, Rollout, RolloutGroup

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Script = Callable[[Prompt, int], str] | Mapping[str, Sequence[str]]


def engine(
    responses: Script,
    tokenizer: PreTrainedTokenizerBase,
    *,
    log_probs: float | Callable[[Prompt, int], Sequence[float]] = -1.0,
) -> ScriptedEngine:
    """An engine that says what it is told.

    Args:
        responses: the text of a prompt's i-th response: a function of the prompt and i, or for each prompt's id its
            responses, which are repeated from the first when the group is larger.
        log_probs: of the i-th response's tokens, end-of-sequence included; one number stands for each of them.
    """
    return ScriptedEngine(responses, tokenizer, log_probs)


@dataclass(frozen=True, slots=True)
class WeightLoad:
    """One call of `load_weights`."""

    policy_version: int
    names: tuple[str, ...]  # in the stream's order


class ScriptedEngine:
    """Gives every response the end-of-sequence token, and cuts it at `max_tokens` as a real engine does."""

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
        """`generate`, when it is waited for. A script has no turns.

        Raises:
            UserError: an environment is given.
        """
        if environment is not None:
            raise UserError("the scripted engine answers in one turn: choose another engine, or no environment")
        return AtOnce(lambda: self.generate(prompts, sampling, group_size=group_size, seed=seed))

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, group_size: int, seed: int
    ) -> list[RolloutGroup]:
        """The scripted responses. Temperature, top-p, stop strings and the seed change nothing.

        Raises:
            UserError: no weights were loaded, the script has no response to a prompt, or the log-probs are not one for
                each token.
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

    def rest(self) -> None:
        """Has nothing to give back."""

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def close(self) -> None:
        """Has nothing to give back."""

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
