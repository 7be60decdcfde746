"""A reward model scores responses: a classifier of sequences with one label, which SGLang serves."""

import math
from pathlib import Path
from typing import Any

from megatron_sspo.config.kinds import Amount, Count, Finite, Positive
from megatron_sspo.errors import UserError, first_line
from megatron_sspo.reward.awaited import Limits, Unscorable
from megatron_sspo.reward.format import outside_of_thoughts
from megatron_sspo.reward.service import Service, check_service
from megatron_sspo.types import Prompt
from megatron_sspo.weights.transformers_config import read_tokenizer

_PLACE = "THE-RESPONSE"


def reward(
    url: str,
    tokenizer: Path,
    key_variable: str = "",
    max_requests: Count = 32,
    timeout: Positive = 60.0,
    retries: Amount = 3,
    failure_reward: Finite = 0.0,
) -> "ModelReward":
    """Builds the reward.

    Args:
        url: the server's address, such as http://127.0.0.1:30000, of `sglang.launch_server --is-embedding`.
        tokenizer: the reward model's folder, of which the tokenizer and its chat template are read.
        key_variable: the environment variable with the server's key; "": none.
        max_requests: see `megatron_sspo.reward.awaited.Limits`, as for the next three.
        timeout: seconds of an attempt.
        retries: further attempts.
        failure_reward: the reward of a response that no attempt could score.
    """
    limits = Limits(max_requests=max_requests, timeout=timeout, retries=retries, failure_reward=failure_reward)
    return ModelReward(Service(url, key_variable), _read(tokenizer), limits)


def check_values(url: str, tokenizer: Path, key_variable: str = "", **others: Any) -> None:
    """Raises UserError for a URL that is none, a key that is not set, or a tokenizer without a chat template."""
    check_service("the reward 'model'", url, key_variable)
    _read(tokenizer)


class ModelReward:
    """{"model": s}, the score that the classifier gives the chat of the prompt and the response without its thoughts.

    The response is encoded apart from the chat template, without special tokens, so it cannot pose as a message.
    """

    def __init__(self, service: Service, tokenizer: Any, limits: Limits) -> None:
        self._service, self._tokenizer = service, tokenizer
        self.limits, self.name = limits, f"'model' at {service.url}"

    async def score(self, prompt: Prompt, response: str) -> dict[str, float]:
        """Asks the server. Raises Unscorable if it gives no score, or ConnectionError."""
        answer = await self._service.post("/classify", {"input_ids": self.tokens(prompt, response)})
        try:
            (score,) = answer["embedding"]
            if not math.isfinite(score):
                raise ValueError
        except (LookupError, TypeError, ValueError):
            raise Unscorable(
                f"the server gave no score, but {str(answer)[:300]}: it needs a model with one label"
            ) from None
        return {"model": float(score)}

    def tokens(self, prompt: Prompt, response: str) -> list[int]:
        """Returns the tokens of the chat that is scored."""
        messages = [*map(dict, prompt.messages), {"role": "assistant", "content": _PLACE}]
        before, _, after = self._tokenizer.apply_chat_template(messages, tokenize=False).rpartition(_PLACE)
        text = outside_of_thoughts(response).partition("<think>")[0].strip()  # nor a thought that is left open
        return [*self._encode(before), *self._encode(text, split_special_tokens=True), *self._encode(after)]

    def _encode(self, text: str, **options: Any) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"] if text else []

    async def close(self) -> None:
        """Closes the connections."""
        await self._service.close()


def _read(folder: Path) -> Any:
    try:
        found = read_tokenizer(folder)
    except Exception as error:
        raise UserError(f"the reward 'model': no tokenizer can be read from {folder}: {first_line(error)}") from error
    if not found.chat_template:
        raise UserError(f"the reward 'model': the tokenizer of {folder} has no chat template: add chat_template.jinja")
    return found
