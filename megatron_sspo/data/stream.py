"""`PromptStream`: tokenized prompts, drawn epoch after epoch, with a state that a resumed run restores."""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from megatron_sspo.config.naming import without_address
from megatron_sspo.data.row import Dropped, Row, count_dropped, describe_columns
from megatron_sspo.data.template import check_template, has_own_system, render
from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SOLUTIONS = "; each answer is a solution with a line '#### ...': answer_after='####' takes what follows"


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
        UserError: no prompts are left, an id occurs twice, the template does not fit, or a prompt has more than
            `max_tokens` tokens.
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
        check_template(tokenizer, template, system)
        kept = [row for row in rows if isinstance(row, Row)]
        self._dropped = [row for row in rows if isinstance(row, Dropped)]
        twice = [id for id, count in Counter(row.id for row in kept).items() if count > 1]
        if twice:
            raise UserError(f"the row id {twice[0]!r} occurs more than once: a source must give each row its own")
        if system and kept and all(map(has_own_system, kept)):
            raise UserError(
                f"{kept[0].id} and all other rows have a system message of their own: leave the option system empty, "
                "or remove the rows' messages"
            )
        prompts = _tokenized([render(row, tokenizer, template, system) for row in kept], tokenizer)
        too_long = {prompt.id: len(prompt.tokens) for prompt in prompts if len(prompt.tokens) > max_tokens}
        if too_long and overlong == "error":
            first = next(iter(too_long))
            raise UserError(
                f"the prompt of {first} has {too_long[first]} tokens, more than max_tokens={max_tokens} "
                f"({len(too_long)} of {len(prompts)} prompts do): raise prompts.max_tokens to "
                f"{max(too_long.values())}, or set prompts.overlong to drop"
            )
        reason = f"has more than {max_tokens} tokens"
        self._dropped += [Dropped(id=id, reason=reason, detail=f"{n} tokens") for id, n in too_long.items()]
        self._prompts = [prompt for prompt in prompts if prompt.id not in too_long]
        if not self._prompts:
            why = f", and all are dropped ({count_dropped(self._dropped)})" if rows else ""
            raise UserError(
                f"the source of the prompts has {len(rows) or 'no'} rows{why}: check its path, split and options, "
                "prompts.max_tokens and prompts.without"
            )
        self.columns = _describe_sets(kept)
        self._draw_rates = rates = _draw_rates([row for row in kept if row.id not in too_long], seed)
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

        Raises UserError if it belongs to a stream with other prompts, another seed or another order.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise UserError(
                    f"the prompts cannot be resumed: the checkpoint's stream has {name}={state.get(name)!r} and this "
                    f"one {name}={value!r}: resume with the data and the seed of the first start, or begin a new run"
                )
        self._move_to(state["epoch"], state["position"])

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
        texts = repr((prompt.id, prompt.tokens, prompt.answer)), _canonical((prompt.messages, prompt.metadata))
        digest.update("".join(texts).encode())
    return digest.hexdigest()


def _canonical(value: Any) -> str:
    """Returns a text that is the same in every process for the same value, and another one for another value.

    JSON has no such text: keys of a dict may be of several types, a set has another order in another process, and the
    text of an object may contain its address.
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{_canonical(key)}: {_canonical(item)}' for key, item in value.items()))}}}"
    if isinstance(value, (set, frozenset)):
        return f"set({', '.join(sorted(map(_canonical, value)))})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_canonical, value))}]"
    return repr(value) if isinstance(value, str) else without_address(repr(value))


def _tokenized(rendered: list[tuple[Prompt, str]], tokenizer: "PreTrainedTokenizerBase") -> list[Prompt]:
    """Adds the tokens of their texts to prompts, in one call, which fast tokenizers run in parallel."""
    if not rendered:
        return []
    # verbose=False: the tokenizer warns about long inputs, which `max_tokens` decides about
    tokens = tokenizer([text for _, text in rendered], add_special_tokens=False, verbose=False)["input_ids"]
    return [replace(prompt, tokens=tuple(found)) for (prompt, _), found in zip(rendered, tokens, strict=True)]


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
