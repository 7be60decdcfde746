"""An episode as the endpoint sees it: its budgets, and the record of its turns."""

import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.agents.chat import ChatRequest, Completion
from megatron_sspo.rollout.agents.messages import Message, Refusal
from megatron_sspo.rollout.agents.template import ChatTemplate
from megatron_sspo.rollout.agents.tree import Sampled, Tree, Turn
from megatron_sspo.rollout.stopping import text_of
from megatron_sspo.types import Endpoint


class Sampler(Protocol):
    """Samples and parses the turns of one episode; every engine has its own."""

    takes_schemas: bool
    """Whether it samples JSON of a given schema."""

    async def sample(
        self, prompt: Sequence[int], *, max_tokens: int, stop: tuple[str, ...], number: int, schema: str
    ) -> Sampled:
        """Samples one turn. Cancelling it cancels the request.

        Args:
            max_tokens: the largest number of tokens of the turn.
            stop: the client's strings that end the turn, in addition to the stop strings of the run.
            number: the number of the turn in its episode, from 0.
            schema: JSON schema that the turn must follow; "": any text.

        Raises:
            Refusal: the engine cannot follow the schema.
            UserError: the engine cannot generate; the run ends.
        """
        ...

    async def parse(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Message:
        """Returns the message of an answer, with its reasoning and calls of tools.

        Args:
            tools: the tools that may be called; empty if calls are not to be parsed.
        """
        ...


class Session:
    """The endpoint's side of one episode: answers its requests within its budgets, and records its turns.

    Args:
        sampler: samples the turns.
        template: the model's chat template.
        tokenizer: decodes the turns.
        limits: the limits of an episode.
        end_tokens: the tokens that end a turn.
        max_tokens: the largest number of tokens of a conversation, prompt included.
        vocab_size: the number of tokens of the model.
    """

    def __init__(
        self,
        sampler: Sampler,
        template: ChatTemplate,
        tokenizer: Any,
        limits: Endpoint,
        *,
        end_tokens: Collection[int],
        max_tokens: int,
        vocab_size: int,
    ) -> None:
        self.key = secrets.token_urlsafe(32)
        self.tree = Tree()
        self.num_begun = self.num_refused = 0  # turns that were begun, some of which have no answer; refused requests
        self.refusal: Refusal | None = None  # the last refusal
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # fails if the engine does
        self.in_progress: set[asyncio.Task[Any]] = set()
        self._sampling: list[tuple[Turn | None, bool]] = []  # turns in progress: (turn continued, is a new branch)
        self.last_text = ""
        self._sampler, self._template, self._tokenizer, self._limits = sampler, template, tokenizer, limits
        self._end_tokens, self._max_tokens, self._vocab_size = end_tokens, max_tokens, vocab_size

    @property
    def num_turns(self) -> int:
        """The number of requests that were answered."""
        return len(self.tree.turns)

    def admit(self) -> None:
        """Raises Refusal if as many requests are in progress as are allowed; clients then try again."""
        if len(self.in_progress) > self._limits.max_concurrent:
            raise Refusal(
                f"an episode may have {self._limits.max_concurrent} requests in progress", status=429, code="too_many"
            )

    async def answer(self, request: ChatRequest) -> Completion:
        """Samples the next turn of a conversation and records it.

        Raises:
            Refusal: a budget is spent, the template rejects the conversation, or answers of the required form are
                refused.
        """
        self._check_form(request)
        if self.num_turns + len(self._sampling) >= self._limits.max_turns:
            raise Refusal(f"the episode has had its {self._limits.max_turns} turns", code="episode_budget_exceeded")
        parent, prompt = self._prompt(request)
        room = self._max_tokens - len(prompt)
        if room < 1:
            raise Refusal(
                f"the conversation has {len(prompt)} tokens, and {self._max_tokens} with the answer are allowed "
                "(prompts.max_tokens + rollouts.sampling.max_tokens, or the model's positions)",
                code="context_length_exceeded",
            )
        if max(prompt) >= self._vocab_size:
            raise Refusal("the conversation has a token that the model does not have")
        is_continued = parent is not None and any(parent is other for other, _ in self._sampling)
        is_new_branch = parent is None or is_continued or not self.tree.is_leaf(parent)
        num_branches = self.tree.num_branches + sum(is_new for _, is_new in self._sampling)
        if is_new_branch and num_branches >= self._limits.max_branches:
            raise Refusal(
                f"the episode has had its {self._limits.max_branches} branches: continue one of its conversations",
                code="episode_budget_exceeded",
            )
        number, self.num_begun = self.num_begun, self.num_begun + 1
        in_progress = parent, is_new_branch
        self._sampling.append(in_progress)
        try:
            sampled = await self._sampler.sample(
                prompt,
                max_tokens=min(room, request.max_tokens or room),
                stop=request.stop,
                number=number,
                schema=request.required_form.json_schema if request.required_form else "",
            )
            message, stop = await self._parse(request, sampled)
        except UserError as error:
            if not self.broken.done():
                self.broken.set_exception(error)
            raise Refusal("the engine has failed", code="engine") from error
        finally:
            self._sampling.remove(in_progress)
        conversation, is_forced = [*request.messages, message], request.required_form is not None
        self.tree.turns.append(Turn(request.tools_key, conversation, prompt, sampled, parent, is_forced))
        return Completion(message, sampled.finish_reason, len(prompt), len(sampled.tokens), stop)

    def _check_form(self, request: ChatRequest) -> None:
        """Raises Refusal if the request prescribes a form that the run or the engine refuses."""
        if request.required_form is None:
            return
        if self._limits.forced_turns == "refuse":
            raise Refusal(
                "the request prescribes the form of its answer (tool_choice, response_format): a grammar would change "
                "the distribution that tokens are sampled from. With rollouts.endpoint.forced_turns='observe' it is "
                "answered, and nothing is learned from the answer",
                code="constrained_decoding",
            )
        if not self._sampler.takes_schemas:
            raise Refusal(
                "this engine samples no answers of a given form: SGLang does on GPUs, and on a CPU with "
                "rollouts.options.server={'grammar_backend': 'llguidance'}",
                code="constrained_decoding",
            )

    async def _parse(self, request: ChatRequest, sampled: Sampled) -> tuple[Message, str]:
        """Returns the message of a turn, and the client's string that ended it."""
        self.last_text = text_of(sampled.tokens, self._tokenizer, self._end_tokens)
        text, stop = _split(self.last_text, request.stop)
        if request.required_form is not None:
            return request.required_form.message(text, request.tools), stop
        return await self._sampler.parse(text, request.tools if request.parse_calls else []), stop

    def _prompt(self, request: ChatRequest) -> tuple[Turn | None, list[int]]:
        """Returns the turn that a request continues, if there is one, and the tokens of its prompt."""
        turn = self.tree.continued_by(request.tools_key, request.messages)
        if turn is not None:
            between = self._template.between(
                request.messages,
                len(turn.messages),
                request.tools,
                last_token=turn.sampled.tokens[-1],
                max_tokens=self._max_tokens,
            )
            if between is not None:
                return turn, [*turn.tokens, *between]
        return None, self._template.prompt(request.messages, request.tools, max_tokens=self._max_tokens)


def _split(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """Returns the text before the first stop string, and that string; all of the text and "" if there is none."""
    places = [(place, string) for string in stop if (place := text.find(string)) >= 0]
    place, string = min(places, default=(len(text), ""))
    return text[:place], string
