"""An episode as the endpoint sees it: its budgets, and the record of its turns."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

from sspo_agents.chat import ChatRequest, Completion
from sspo_agents.errors import Refusal
from sspo_agents.messages import Message, names_of
from sspo_agents.parsing import find_calls, new_call, split_reasoning
from sspo_agents.protocol import Limits, Sampled, Sampler
from sspo_agents.template import ChatTemplate
from sspo_agents.tree import Tree, Turn


class Session:
    """The endpoint's side of one episode: answers its requests within its limits, and records its turns."""

    def __init__(self, sampler: Sampler, template: ChatTemplate, limits: Limits) -> None:
        self.key = secrets.token_urlsafe(32)
        self.tree = Tree()
        self.num_begun = self.num_refused = 0  # turns that were begun, some of which have no answer; refused requests
        self.refusal: Refusal | None = None  # the last refusal
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # fails if the engine does
        self.in_progress: set[asyncio.Task[Any]] = set()
        self.last_text = ""
        self._sampling: list[tuple[Turn | None, bool]] = []  # turns in progress: (turn continued, is a new branch)
        self._sampler, self._model, self._template, self._limits = sampler, template.model, template, limits

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

        Raises Refusal if a budget is spent, the template rejects the conversation, or answers of this form are refused.
        """
        self._check_form(request)
        if self.num_turns + len(self._sampling) >= self._limits.max_turns:
            raise Refusal(f"the episode has had its {self._limits.max_turns} turns", code="episode_budget_exceeded")
        parent, prompt = self._prompt(request)
        room = self._model.max_tokens - len(prompt)
        if room < 1:
            raise Refusal(
                f"the conversation has {len(prompt)} tokens, and {self._model.max_tokens} with the answer are allowed "
                f"({self._model.limited_by})",
                code="context_length_exceeded",
            )
        if max(prompt) >= self._model.vocab_size:
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
        except Refusal:
            raise
        except Exception as error:
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
                "the distribution that tokens are sampled from. With forced_turns='observe' of the endpoint it is "
                "answered, and nothing is learned from the answer",
                code="constrained_decoding",
            )
        if not self._sampler.takes_schemas:
            raise Refusal("this engine samples no answers of a given form", code="constrained_decoding")

    async def _parse(self, request: ChatRequest, sampled: Sampled) -> tuple[Message, str]:
        """Returns the message of a turn, and the client's string that ended it."""
        self.last_text = self._model.decode(sampled.tokens)
        text, stop = _split(self.last_text, request.stop)
        if request.required_form is not None:
            return request.required_form.message(text, request.tools), stop
        content, reasoning = await self._sampler.split_reasoning(text) or split_reasoning(text)
        if not request.parse_calls:
            return Message("assistant", content, reasoning), stop
        found = await self._sampler.find_calls(content, request.tools)
        if found is None:
            content, calls = find_calls(content, names_of(request.tools))
        else:
            content, calls = found[0], [new_call(*call) for call in found[1]]
        return Message("assistant", content, reasoning, tuple(calls)), stop

    def _prompt(self, request: ChatRequest) -> tuple[Turn | None, list[int]]:
        """Returns the turn that a request continues, if there is one, and the tokens of its prompt."""
        turn = self.tree.continued_by(request.tools_key, request.messages)
        if turn is not None:
            between = self._template.between(
                request.messages, len(turn.messages), request.tools, last_token=turn.sampled.tokens[-1]
            )
            if between is not None:
                return turn, [*turn.tokens, *between]
        return None, self._template.prompt(request.messages, request.tools)


def _split(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """Returns the text before the first stop string, and that string; all of the text and "" if there is none."""
    places = [(place, string) for string in stop if (place := text.find(string)) >= 0]
    place, string = min(places, default=(len(text), ""))
    return text[:place], string
