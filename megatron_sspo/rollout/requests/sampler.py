"""Samples the turns of one rollout on SGLang's servers, and asks their parsers of answers if these are named."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from megatron_sspo.rollout.engine import Sampled, SchemaRejected
from megatron_sspo.rollout.requests.generation import Requests
from megatron_sspo.rollout.servers.client import RequestRejected
from megatron_sspo.types import Prompt, Sampling


class ServedSampler:
    """The sampler of one rollout; `first` is the number of the server to try first, as in `Requests.run_turn`."""

    def __init__(self, requests: Requests, prompt_id: str, sampling: Sampling, first: int) -> None:
        self._requests, self._prompt_id, self._sampling, self._first = requests, prompt_id, sampling, first
        self.takes_schemas = requests.takes_schemas

    async def sample(
        self, prompt: Sequence[int], *, max_tokens: int, stop: tuple[str, ...] = (), number: int = 0, schema: str = ""
    ) -> Sampled:
        """Samples one turn. If weights are loaded meanwhile, it continues like any other response."""
        sampling = replace(self._sampling, max_tokens=max_tokens, stop=(*self._sampling.stop, *stop))
        whole = Prompt(id=self._prompt_id, tokens=tuple(prompt), answer="")
        try:
            part = await self._requests.run_turn(whole, sampling, self._first, schema=schema)
        except RequestRejected as error:
            if not schema:
                raise
            raise SchemaRejected(str(error)) from error
        assert part.finish_reason is not None
        return Sampled(part.tokens.tolist(), part.log_probs.tolist(), part.finish_reason, part.spans, part.routes)

    async def split_reasoning(self, text: str) -> tuple[str, str] | None:
        """See `Sampler.split_reasoning`."""
        if not self._requests.options.reasoning_parser:
            return None
        found = await self._ask(
            "/separate_reasoning", text=text, reasoning_parser=self._requests.options.reasoning_parser
        )
        return found.get("text") or "", found.get("reasoning_text") or ""

    async def find_calls(
        self, text: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[tuple[str, str]]] | None:
        """See `Sampler.find_calls`. An answer whose calls no client could send again has none."""
        if not self._requests.options.tool_call_parser:
            return None
        options = {"tools": list(tools), "tool_call_parser": self._requests.options.tool_call_parser}
        found = await self._ask("/parse_function_call", text=text, **options)
        calls = [(call["name"], call["parameters"]) for call in found.get("calls") or []]
        is_encodable = all(part.encode(errors="replace").decode() == part for call in calls for part in call)
        return (found.get("normal_text") or "", calls) if is_encodable else (text, [])

    async def _ask(self, path: str, **content: Any) -> Mapping[str, Any]:
        return await self._requests.ask(path, content, self._first)
