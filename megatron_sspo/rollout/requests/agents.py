"""Turns of agents on SGLang's servers, and the parsing of answers by the servers' own parsers if these are named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.agents.messages import Call, Message, Refusal, is_encodable, names_of
from megatron_sspo.rollout.agents.parsing import new_call_id, parse_answer
from megatron_sspo.rollout.agents.tree import Sampled
from megatron_sspo.rollout.servers.client import RequestRejected
from megatron_sspo.types import Prompt, Sampling

if TYPE_CHECKING:
    from megatron_sspo.rollout.requests.generation import Requests


@dataclass(frozen=True, slots=True)
class Parsers:
    """The names of SGLang's parsers, as its options `tool_call_parser` and `reasoning_parser`; "": `parse_answer`."""

    tool_calls: str = ""
    reasoning: str = ""


class ServedSampler:
    """The sampler of one episode of an agent.

    Args:
        requests: the requests to the servers.
        prompt_id: the id of the prompt, for messages.
        sampling: the sampling parameters of the run.
        first: number of the server to try first, as in `Requests.generate_response`.
    """

    def __init__(self, requests: "Requests", prompt_id: str, sampling: Sampling, first: int) -> None:
        self._requests, self._prompt_id, self._sampling, self._first = requests, prompt_id, sampling, first
        self.takes_schemas = requests.takes_schemas

    async def sample(
        self, prompt: Sequence[int], *, max_tokens: int, stop: tuple[str, ...], number: int, schema: str
    ) -> Sampled:
        """Samples one turn. If weights are loaded meanwhile, it continues like any other response."""
        sampling = replace(self._sampling, max_tokens=max_tokens, stop=(*self._sampling.stop, *stop))
        whole = Prompt(id=self._prompt_id, tokens=tuple(prompt), answer="")
        try:
            part = await self._requests.run_turn(whole, sampling, self._first, schema=schema)
        except RequestRejected as error:
            if not schema:
                raise
            raise Refusal(f"the engine cannot follow the schema: {error}", code="constrained_decoding") from error
        assert part.finish_reason is not None
        return Sampled(part.tokens.tolist(), part.log_probs.tolist(), part.finish_reason, part.spans, part.routes)

    async def parse(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Message:
        """Returns the message of an answer."""
        parsers, ask = self._requests.parsers, self._requests.ask
        found = parse_answer(text, () if parsers.tool_calls else names_of(tools))
        if parsers.reasoning:
            content = {"text": text, "reasoning_parser": parsers.reasoning}
            answer = await ask("/separate_reasoning", content, self._first)
            text, reasoning = (_text("/separate_reasoning", answer, name) for name in ("text", "reasoning_text"))
            found = Message("assistant", text, reasoning, found.calls)
        if parsers.tool_calls and tools:
            content = {"text": found.content, "tools": list(tools), "tool_call_parser": parsers.tool_calls}
            answer = await ask("/parse_function_call", content, self._first)
            try:
                given = [(call["name"], call["parameters"]) for call in answer.get("calls") or []]
            except (LookupError, TypeError) as error:
                raise _in_another_form("/parse_function_call", answer, repr(error)) from error
            if not all(isinstance(part, str) for call in given for part in call):
                raise _in_another_form("/parse_function_call", answer, "a call is not text")
            calls = [Call(name, arguments, new_call_id()) for name, arguments in given]
            if not all(is_encodable(call.arguments) for call in calls):
                return found  # no client could send such a call again: it stays in the content
            content = _text("/parse_function_call", answer, "normal_text")
            found = replace(found, content=content, calls=tuple(calls))
        return found


def _text(path: str, answer: Mapping[str, Any], name: str) -> str:
    """Returns a text of an answer, "" if it is missing."""
    found = answer.get(name) or ""
    if not isinstance(found, str):
        raise _in_another_form(path, answer, f"{name} is not text")
    return found


def _in_another_form(path: str, answer: Mapping[str, Any], why: str) -> UserError:
    return UserError(
        f"a server answered {path} in another form ({why}): {str(answer)[:200]}; install the release of SGLang that "
        "the documentation names"
    )
