"""`PromptStream`: tokenized prompts, drawn epoch after epoch, with a state that a resumed run restores."""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from megatron_sspo.data.canonical import canonical
from megatron_sspo.data.row import Dropped, Row, count_dropped, describe_columns
from megatron_sspo.data.template import MAX_CHARACTERS, messages_of, prefill_of, render, render_demonstration
from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SOLUTIONS = "; each answer is a solution with a line '#### ...': answer_after='####' takes what follows"

Pair = tuple[Row, Sequence[int]]  # a row and the tokens of its prompt


class PromptStream:
    """An endless stream of prompts. The seed determines the order of each epoch.

    An epoch has every prompt once. For a mixture with weights it has about as many draws as there are prompts,
    distributed by the weights: over the epochs the draw counts of two prompts of a subset differ by one at most.

    Every row is rendered and tokenized at construction, so that a bad row is found before anything else starts. No
    special tokens are added: a chat template writes them as text, and a format string contains those that it needs.

    Args:
        rows: rows of one or several sources; rows that are dropped already are added to `dropped`.
        overlong: treatment of a prompt with more than `max_tokens` tokens: raise an error, or drop the prompt.

    Attributes:
        columns: what the columns of the source became, a line for each set of a mixture: see `describe_columns`.

    Raises:
        UserError: there are no rows, an id occurs twice, the template does not fit, or a prompt is empty or has more
            than `max_tokens` tokens.
    """

    def __init__(
        self,
        rows: Sequence[Row | Dropped],
        tokenizer: "PreTrainedTokenizerBase",
        *,
        template: str,
        system: str = "",
        max_tokens: int,
        seed: int,
        shuffle: bool = True,
        overlong: Literal["error", "drop"] = "error",
    ) -> None:
        kept = [row for row in rows if isinstance(row, Row)]
        self._dropped = [row for row in rows if isinstance(row, Dropped)]
        _check_rows(kept, self._dropped)
        rendered, long = _split_by_length(kept, [render(row, tokenizer, template, system) for row in kept], max_tokens)
        if long and overlong == "error":
            raise UserError(
                f"the prompt of {long[0].id} has {long[0].detail}, too many for max_tokens={max_tokens}: shorten or "
                "drop it, raise prompts.max_tokens, or set prompts.overlong to drop"
            )
        tokens = _tokenize([text for _, text in rendered], tokenizer)
        pairs = [(row, found) for (row, _), found in zip(rendered, tokens, strict=True)]
        prefills = {row.id: prefill_of(text) for row, text in rendered}
        worked = {row.id: render_demonstration(row, tokenizer, system, text) for row, text in rendered}
        if overlong == "drop":
            pairs, too_many = _drop_long(pairs, max_tokens)
            self._dropped += long + too_many
        _check_lengths(pairs, max_tokens)
        self._prompts = [_to_prompt(row, tokens, system, prefills[row.id], worked[row.id]) for row, tokens in pairs]
        self.columns = _describe_sets(kept)
        self._draw_rates = rates = _draw_rates([row for row, _ in pairs], seed)
        self._content = digest_of(self._prompts, repr(rates) if rates else "")
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)

    @property
    def prompts(self) -> list[Prompt]:
        """All prompts, once each, in the order of the source."""
        return list(self._prompts)

    @property
    def dropped(self) -> list[Dropped]:
        """All rows that were left out: by the source, as evaluation questions, or as too long."""
        return list(self._dropped)

    def digest(self) -> str:
        """Returns a hash of all prompts with their demonstrations, and of how often they are drawn."""
        demonstrations = repr([prompt.demonstration for prompt in self._prompts])
        return hashlib.sha256((self._content + demonstrations).encode()).hexdigest()

    def take(self, n: int) -> list[Prompt]:
        """Returns the next `n` prompts; `n` may exceed an epoch."""
        taken: list[Prompt] = []
        while len(taken) < n:
            if self._position == len(self._order):
                self._move_to(self._epoch + 1, 0)
            indices = self._order[self._position : self._position + n - len(taken)]
            taken += [self._prompts[index] for index in indices]
            self._position += len(indices)
        return taken

    def state(self) -> dict[str, Any]:
        """Returns the position of the stream, and what identifies the stream, as JSON values."""
        return {**self._identity(), "epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where `state` was taken.

        Raises:
            UserError: the state belongs to a stream with other prompts, another seed or another order, or is damaged.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise UserError(
                    f"the prompts cannot be resumed: the checkpoint's stream has {name}={state.get(name)!r} and this "
                    f"one {name}={value!r}: resume with the data and the seed of the first start, or begin a new run"
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (
            isinstance(epoch, int)
            and isinstance(position, int)
            and epoch >= 0
            and 0 <= position <= len(self._order_of(epoch))
        ):
            raise UserError(
                f"the prompts cannot be resumed: {epoch=} and {position=} lie outside the {len(self._prompts)} "
                "prompts: the checkpoint is damaged, so resume from another one"
            )
        self._move_to(epoch, position)

    def _identity(self) -> dict[str, Any]:
        return {"size": len(self._prompts), "seed": self._seed, "shuffle": self._shuffle, "content": self._content}

    def _move_to(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = self._order_of(epoch)

    def _num_draws(self, index: int, epoch: int) -> int:
        if not self._draw_rates:
            return 1
        rate, start = self._draw_rates[index]
        return math.floor((epoch + 1) * rate + start) - math.floor(epoch * rate + start)

    def _order_of(self, epoch: int) -> list[int]:
        order = [index for index in range(len(self._prompts)) for _ in range(self._num_draws(index, epoch))]
        if self._shuffle:
            random.Random(f"{self._seed}:{epoch}").shuffle(order)  # a text seed gives the same order in every process
        return order


def digest_of(prompts: Sequence[Prompt], more: str = "") -> str:
    """Returns a hash of a text and of all that generation and rewards read of prompts: all but the demonstrations."""
    digest = hashlib.sha256(more.encode())
    for prompt in prompts:
        texts = repr((prompt.id, prompt.tokens, prompt.answer)), canonical((prompt.messages, prompt.metadata))
        digest.update("".join(texts).encode())
    return digest.hexdigest()


def _draw_rates(rows: Sequence[Row], seed: int) -> list[tuple[Fraction, Fraction]]:
    """Returns the draws per epoch of each row of a weighted mixture, and its phase; [] without weights.

    The phases of the n rows of a subset are 0, 1/n, 2/n, ..., in an order that the seed determines. Every epoch then
    draws the subset as often as its weight says, and draws all rows of the subset before it repeats one.
    """
    sizes = Counter(row.subset for row in rows)
    shares = {row.subset: Fraction(row.share) for row in rows}  # exactly, because 1/49 · 49 < 1 in floats
    total = sum(shares.values())
    if not total:
        return []
    places = {subset: list(range(size)) for subset, size in sizes.items()}
    for subset, order in places.items():
        random.Random(f"{seed}:{subset}").shuffle(order)
    rate = {subset: share / total * len(rows) / sizes[subset] for subset, share in shares.items()}
    return [(rate[row.subset], Fraction(places[row.subset].pop(), sizes[row.subset])) for row in rows]


def _describe_sets(rows: Sequence[Row]) -> list[str]:
    columns: dict[str, dict[tuple[str, str], None]] = {}
    unmarked: set[str] = set()  # sets in which a gold answer is not the solution of GSM8K's form
    for row in rows:
        if row.columns:
            columns.setdefault(row.subset, {}).update(dict.fromkeys(row.columns))
        if "\n####" not in row.answer:
            unmarked.add(row.subset)
    return [
        f"{name}: " * bool(name) + describe_columns(pairs) + _SOLUTIONS * (name not in unmarked)
        for name, pairs in columns.items()
    ]


def _check_rows(rows: Sequence[Row], dropped: Sequence[Dropped]) -> None:
    if not rows and dropped:
        raise UserError(
            f"the source of the prompts has {len(dropped)} rows, and all are dropped ({count_dropped(dropped)}): check "
            "its path, split and options, and prompts.without"
        )
    if not rows:
        raise UserError("the source of the prompts has no rows: check its path, split and options")
    twice = [id for id, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise UserError(f"the row id {twice[0]!r} occurs more than once: a source must give each row its own")
    shares: dict[str, float] = {}
    for row in rows:
        if shares.setdefault(row.subset, row.share) != row.share:
            raise UserError(
                f"row {row.id!r} has the share {row.share}, and another row of its subset {row.subset!r} has "
                f"{shares[row.subset]}: a share belongs to a subset, so give all of its rows the same"
            )
    without = [subset for subset, share in shares.items() if not share]
    if without and any(shares.values()):
        raise UserError(f"the rows of the subset {without[0]!r} have no share, and others have one: give all or none")


def _split_by_length(
    rows: Sequence[Row], texts: Sequence[str], max_tokens: int
) -> tuple[list[tuple[Row, str]], list[Dropped]]:
    """Returns the rows with texts that can be tokenized at all, and the others."""
    limit, reason = MAX_CHARACTERS * max_tokens, f"has more than {max_tokens} tokens"
    pairs = list(zip(rows, texts, strict=True))
    long = [Dropped(id=row.id, reason=reason, detail=f"{len(t):,} characters") for row, t in pairs if len(t) > limit]
    return [(row, text) for row, text in pairs if len(text) <= limit], long


def _tokenize(texts: list[str], tokenizer: "PreTrainedTokenizerBase") -> list[Sequence[int]]:
    if not texts:
        return []
    # verbose=False: `_check_lengths` raises a better message than the tokenizer's warning about long inputs.
    return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def _drop_long(pairs: Sequence[Pair], max_tokens: int) -> tuple[list[Pair], list[Dropped]]:
    long = [
        Dropped(id=row.id, reason=f"has more than {max_tokens} tokens", detail=f"{len(tokens)} tokens")
        for row, tokens in pairs
        if len(tokens) > max_tokens
    ]
    if not pairs or len(long) == len(pairs):
        raise UserError(f"every prompt has more than max_tokens={max_tokens} tokens: raise prompts.max_tokens")
    return [(row, tokens) for row, tokens in pairs if len(tokens) <= max_tokens], long


def _check_lengths(pairs: Sequence[Pair], max_tokens: int) -> None:
    overlong = [(row, tokens) for row, tokens in pairs if len(tokens) > max_tokens]
    if overlong:
        longest = max(len(tokens) for _, tokens in overlong)
        raise UserError(
            f"the prompt of {overlong[0][0].id} has {len(overlong[0][1])} tokens, more than max_tokens={max_tokens} "
            f"({len(overlong)} of {len(pairs)} prompts do): raise prompts.max_tokens to {longest}, or set "
            "prompts.overlong to drop"
        )
    for row, tokens in pairs:
        if not tokens:
            raise UserError(f"the prompt of {row.id} has no tokens: does the tokenizer know its characters?")


def _to_prompt(row: Row, tokens: Sequence[int], system: str, prefill: str, demonstration: str) -> Prompt:
    return Prompt(
        id=row.id,
        tokens=tuple(tokens),
        answer=row.answer,
        demonstration=demonstration,
        messages=tuple(messages_of(row, system)),
        tools=tuple(row.tools),
        prefill=prefill,
        metadata=row.metadata,
    )
