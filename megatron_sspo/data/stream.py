"""`PromptStream`: rows as tokenized prompts, drawn epoch after epoch, and resumed where a run stopped."""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megatron_sspo.data.row import Row
from megatron_sspo.data.template import render
from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptStream:
    """An endless stream of prompts: epoch after epoch, each in an order of its own, fixed by the seed.

    Every row is rendered and tokenized at construction, so that a row that does not fit is found before anything else
    starts. No special tokens are added: a chat template writes them as text, and a format string says what it wants.

    Raises:
        UserError: no rows, an id that occurs twice, a template that does not fit, or a prompt that is empty or has more
            than `max_tokens` tokens.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        tokenizer: "PreTrainedTokenizerBase",
        *,
        template: str,
        system: str = "",
        max_tokens: int,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self._prompts = _tokenize(rows, tokenizer, template, system, max_tokens)
        self._content = hashlib.sha256(repr([(p.id, p.tokens, p.answer) for p in self._prompts]).encode()).hexdigest()
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)

    @property
    def prompts(self) -> list[Prompt]:
        """All prompts, once each, in the order of the source."""
        return list(self._prompts)

    def take(self, n: int) -> list[Prompt]:
        """The next `n` prompts; `n` may be more than an epoch holds."""
        taken: list[Prompt] = []
        while len(taken) < n:
            if self._position == len(self._prompts):
                self._move_to(self._epoch + 1, 0)
            indices = self._order[self._position : self._position + n - len(taken)]
            taken += [self._prompts[index] for index in indices]
            self._position += len(indices)
        return taken

    def state(self) -> dict[str, Any]:
        """Where the stream stands, as JSON values."""
        return {**self._identity(), "epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where `state` was taken.

        Raises:
            UserError: the state is of a stream of other prompts, or with another seed or order.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise UserError(
                    f"the prompts cannot be resumed: the checkpoint's stream has {name}={state.get(name)!r} and this "
                    f"one {name}={value!r}: resume with the data and the seed of the first start, or begin a new run"
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (
            isinstance(epoch, int) and isinstance(position, int) and epoch >= 0 and 0 <= position <= len(self._prompts)
        ):
            raise UserError(
                f"the prompts cannot be resumed: {epoch=} and {position=} are no place in {len(self._prompts)} "
                "prompts: the checkpoint is damaged, so resume from another one"
            )
        self._move_to(epoch, position)

    def _identity(self) -> dict[str, Any]:
        return {
            "size": len(self._prompts),
            "seed": self._seed,
            "shuffle": self._shuffle,
            "content": self._content,
        }

    def _move_to(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = self._order_of(epoch)

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self._prompts)))
        if self._shuffle:
            random.Random(f"{self._seed}:{epoch}").shuffle(order)  # seeded by text: the same in every process
        return order


def _tokenize(
    rows: Sequence[Row], tokenizer: "PreTrainedTokenizerBase", template: str, system: str, max_tokens: int
) -> list[Prompt]:
    if not rows:
        raise UserError("the source of the prompts has no rows: check its path, split and options")
    twice = [id for id, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise UserError(f"the row id {twice[0]!r} occurs more than once: a source has to give each row its own")
    texts = [render(row, tokenizer, template, system) for row in rows]
    # verbose=False: the error below says more than the tokenizer's warning about its model's length.
    token_lists = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    _check_lengths(rows, token_lists, max_tokens)
    return [
        Prompt(
            id=row.id,
            tokens=tuple(tokens),
            answer=row.answer,
            demonstration=row.demonstration,
            metadata=row.metadata,
        )
        for row, tokens in zip(rows, token_lists, strict=True)
    ]


def _check_lengths(rows: Sequence[Row], token_lists: Sequence[Sequence[int]], max_tokens: int) -> None:
    overlong = [index for index, tokens in enumerate(token_lists) if len(tokens) > max_tokens]
    if overlong:
        longest = max(len(tokens) for tokens in token_lists)
        raise UserError(
            f"the prompt of {rows[overlong[0]].id} has {len(token_lists[overlong[0]])} tokens, more than "
            f"max_tokens={max_tokens} ({len(overlong)} of {len(rows)} prompts do): raise prompts.max_tokens to "
            f"{longest}, or drop the long rows"
        )
    empty = [index for index, tokens in enumerate(token_lists) if not tokens]
    if empty:
        raise UserError(f"the prompt of {rows[empty[0]].id} has no tokens: does the tokenizer know its characters?")
