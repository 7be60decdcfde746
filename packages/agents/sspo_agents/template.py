"""Renders conversations with the tokenizer's chat template, with tools."""

import contextlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sspo_agents.errors import AgentError, Refusal, describe_error
from sspo_agents.messages import Call, Message
from sspo_agents.protocol import Model

_MAX_CHARACTERS = 64  # of a text for each token that is allowed; a text of megabytes takes minutes to be tokenized


class ChatTemplate:
    """The chat template of a model.

    Text that a client sends is never read as a special token, or as another by which the template separates messages:
    where it spells one, it is encoded as ordinary text.

    Args:
        model: the model.

    Raises:
        AgentError: the template rejects a conversation of one message.
    """

    def __init__(self, model: Model) -> None:
        self.model, self._tokenizer = model, model.tokenizer
        self._first_token = self._find_first_token()  # with which every conversation begins
        self._special = _special_tokens(self._tokenizer)
        longest_first = sorted(self._special | self._separators(), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the tokens of a conversation, with the beginning of the next answer.

        Raises Refusal if there are more tokens than a conversation may have, or the template rejects the conversation,
        or begins it with another token than all other conversations.
        """
        marks = _Marks(self._control)
        rows = [message.for_template() for message in messages]
        self._check_length(rows, tools)
        try:
            text = self.model.render(marks.shield(rows), marks.shield(tools), False)
        except Exception as error:  # Jinja's errors, and all those of a template's own expressions
            raise Refusal(f"the model's chat template rejects the conversation: {describe_error(error)}") from error
        tokens = self._encode(text, marks)
        if tokens[:1] != [self._first_token]:
            raise Refusal("the model's chat template begins this conversation with another token than all others")
        return tokens

    def between(
        self,
        messages: Sequence[Message],
        num_before: int,
        tools: Sequence[Mapping[str, Any]],
        *,
        last_token: int,
    ) -> list[int] | None:
        """Returns the tokens between an answer of the policy and its next one.

        A stand-in for the answer is rendered, and the text that the template writes after it is encoded. The answer
        itself is not rendered, because its rendered text may differ from the sampled tokens.

        Args:
            num_before: the number of messages up to the answer, which is the last of them.
            last_token: the last token that was sampled. It is not repeated if the template ends an answer with it.

        Returns:
            None if the template does not show the stand-in once and whole: the conversation then begins a branch.

        Raises:
            Refusal: there are more tokens than a conversation may have.
        """
        marks = _Marks(self._control)
        stand_in = f"ANSWER{secrets.token_hex(8)}"
        given = [message.for_template() for message in messages]
        self._check_length(given, tools)
        rows = marks.shield(given)
        rows[num_before - 1] = {"role": "assistant", "content": stand_in}
        try:
            _, found, after = self.model.render(rows, marks.shield(tools), False).partition(stand_in)
        except Exception:  # see `prompt`
            return None
        if not found or stand_in in after:
            return None
        tokens = self._encode(after, marks)
        return tokens[1:] if tokens[:1] == [last_token] else tokens

    def _encode(self, text: str, marks: "_Marks") -> list[int]:
        tokens: list[int] = []
        for piece, is_spelled in marks.split(text):
            options = {"split_special_tokens": True} if is_spelled else {}
            # a tokenizer splits only the tokens that it calls special
            parts = (piece[:1], piece[1:]) if is_spelled and piece not in self._special else (piece,)
            for part in filter(None, parts):
                try:
                    tokens += self._tokenizer(part, add_special_tokens=False, verbose=False, **options)["input_ids"]
                except Exception as error:  # of no narrower type: a vocabulary need not have every character
                    raise Refusal(f"the model's tokenizer cannot encode the conversation: {error}") from error
            if len(tokens) > self.model.max_tokens:
                raise self._too_long()
        return tokens

    def _separators(self) -> set[str]:
        """Returns the tokens in brackets that the template writes around messages, such as DeepSeek's `<｜User｜>`.

        Those around calls and results of tools, as Qwen's `<tool_response>`, are among them.
        """
        user, called = Message("user", "task"), Message("assistant", calls=(Call("task", "{}", "task"),))
        result = Message("tool", "task", answers_call="task", name="task")
        texts: list[str] = []
        for messages in ((user, Message("assistant", "task"), user), (user, called, result)):
            with contextlib.suppress(Exception):  # see `prompt`; a template may accept one message alone, or no tools
                rows = [message.for_template() for message in messages]
                texts.append(self.model.render(rows, (), True))
        added = {token.content for token in self._tokenizer.added_tokens_decoder.values()}
        found = {token for token in added - {""} if not _is_word(token[0] + token[-1])}
        return {token for token in found if any(token in text for text in texts)}

    def _find_first_token(self) -> int:
        try:
            text = self.model.render([{"role": "user", "content": "task"}], (), False)
        except Exception as error:  # Jinja's errors, and all those of a template's own expressions
            raise AgentError(
                f"the chat template of the tokenizer {self._tokenizer.name_or_path!r} rejects a conversation of one "
                f"user's message ({describe_error(error)}): choose another model, or no agent"
            ) from error
        return self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][0]

    def _check_length(self, rows: Sequence[Any], tools: Sequence[Any]) -> None:
        """Raises Refusal for texts that are too long to be searched for special tokens."""
        if len(json.dumps([rows, tools], ensure_ascii=False)) > _MAX_CHARACTERS * self.model.max_tokens:
            raise self._too_long()

    def _too_long(self) -> Refusal:
        return Refusal(
            f"the conversation has more than the {self.model.max_tokens} tokens that are allowed "
            f"({self.model.limited_by})",
            code="context_length_exceeded",
        )


def _special_tokens(tokenizer: Any) -> set[str]:
    """Returns the texts of a tokenizer's special tokens. `all_special_tokens` has those with a role alone.

    Of Llama's, for example, it lacks `<|start_header_id|>`.
    """
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return {*tokenizer.all_special_tokens, *added} - {""}


def _is_word(ends: str) -> bool:
    return any(character.isalnum() or character.isspace() for character in ends)


class _Marks:
    """Marks that replace control tokens in the texts of clients while these texts are rendered.

    A mark is random, so that no client can write one.
    """

    def __init__(self, control: "re.Pattern[str]") -> None:
        self._control = control
        self._mark = f"\ue000{secrets.token_hex(8)}"
        self._spelled: list[str] = []

    def shield(self, value: Any) -> Any:
        """Returns a value of JSON with marks in its strings."""
        if isinstance(value, str):
            return self._control.sub(self._replace, value)
        if isinstance(value, Mapping):
            return {self.shield(key): self.shield(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.shield(item) for item in value]
        return value

    def split(self, text: str) -> list[tuple[str, bool]]:
        """Splits a rendered text into the template's pieces and, marked True, spelled control tokens."""
        pieces = re.split(f"{self._mark}:(\\d+)\ue001", text)
        return [(self._spelled[int(p)], True) if n % 2 else (p, False) for n, p in enumerate(pieces)]

    def _replace(self, found: "re.Match[str]") -> str:
        self._spelled.append(found[0])
        return f"{self._mark}:{len(self._spelled) - 1}\ue001"
