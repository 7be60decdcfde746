"""Converts an observation to the tokens between two turns of the policy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from megatron_sspo.config.naming import describe_value, one_line
from megatron_sspo.errors import UserError

_RESPONSE, _OBSERVATION = "FIRST-RESPONSE", "FIRST-OBSERVATION"


class TurnTemplate:
    """The text of the chat template between the end of a response and the start of the next one.

    It is extracted from an example conversation that the template renders once. Tokens of a rollout are only appended.
    The sampled tokens never change, even if rendering their text again would give other tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        messages = [
            {"role": "user", "content": "TASK"},
            {"role": "assistant", "content": _RESPONSE},
            {"role": "user", "content": _OBSERVATION},
        ]
        text = _render(tokenizer, messages)
        before, found, rest = text.partition(_RESPONSE)
        between, found_too, after = rest.partition(_OBSERVATION)
        if not (found and found_too) or _RESPONSE in rest or _OBSERVATION in before + after:
            raise _refusal(tokenizer, "does not show a response and the message after it, in order and once each")
        self._before, self._after = self._encode(between), self._encode(after)

    def observation_tokens(self, response: Sequence[int] | np.ndarray, observation: str) -> tuple[int, ...]:
        """Returns the tokens to append to a response before the policy's next turn.

        Args:
            response: tokens of the response so far. If the last one is the token with which the template ends a
                message, that token is not repeated.
            observation: the observation's text, in which special tokens are encoded as ordinary text.
        """
        if not isinstance(observation, str):
            raise UserError(
                f"the environment's observe returned {describe_value(observation)}: it must return text, or None at "
                "the end"
            )
        before = self._before
        if before and len(response) and before[0] == response[-1]:
            before = before[1:]
        return (*before, *self._encode(observation, split_special_tokens=True), *self._after)

    def _encode(self, text: str, **options: Any) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"] if text else []


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    if not tokenizer.chat_template:
        raise _refusal(tokenizer, "is missing")
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # Jinja's errors, and all those of a template's own expressions
        reason = one_line(str(error)) or type(error).__name__
        raise _refusal(tokenizer, f"rejects a conversation of several turns ({reason})") from error


def _refusal(tokenizer: Any, why: str) -> UserError:
    return UserError(
        f"rollouts.environment needs several turns, and the chat template of the tokenizer "
        f"{tokenizer.name_or_path!r} {why}: choose a model with a chat template of several turns, or no environment"
    )
