"""A mixture of several sets as one source."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from megatron_sspo.config.kinds import LARGEST
from megatron_sspo.data.load import load_rows
from megatron_sspo.data.row import Dropped, Row
from megatron_sspo.errors import UserError, short_repr

_KEYS = ("source", "options", "weight")


def rows(sets: Mapping[str, Mapping[str, Any]]) -> list[Row | Dropped]:
    """Returns the rows of all sets, one set after the other; a row's id begins with the name of its set.

    For example, this takes half of the draws from each of two sets, independently of their sizes:
    `{"gsm8k": {"weight": 1}, "hard": {"source": "hard.jsonl", "options": {"answer": "gold"}, "weight": 1}}`.

    Args:
        sets: the sets by name, each with `source` (by default the name), `options` of the source, and `weight`, its
            share of the draws up to a common factor. Without weights every row is drawn once per epoch. With weights
            an epoch has about as many draws as there are rows, and all rows of a set are drawn before one repeats.

    Raises:
        UserError: there are no sets, a key is unknown, a weight is not above 0, only some of the sets have weights,
            or a source raises one.
    """
    if not isinstance(sets, Mapping) or not sets:
        raise UserError('the mixture has no sets: give it sets={"gsm8k": {}, "deepmath_103k": {}}')
    for name, entry in sets.items():
        _check(name, entry)
    if len({"weight" in entry for entry in sets.values()}) > 1:
        missing = [name for name, entry in sets.items() if "weight" not in entry]
        raise UserError(f"the mixture has a weight for some sets and none for {', '.join(missing)}: give all or none")
    mixed: list[Row | Dropped] = []
    for name, entry in sets.items():
        share = float(entry.get("weight", 0))
        for row in load_rows(entry.get("source", name), entry.get("options", {})):
            if isinstance(row, Row):
                if row.share:
                    raise UserError(
                        f"the set {name!r} of the mixture has weights of its own: list its sets in one mixture, with "
                        "the product of the weights"
                    )
                mixed.append(replace(row, id=f"{name}/{row.id}", subset=name, share=share))
            else:
                mixed.append(replace(row, id=f"{name}/{row.id}"))
    return mixed


def _check(name: str, entry: Any) -> None:
    where = f"the set {name!r} of the mixture"
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} is {entry!r}: it must be an object with some of {', '.join(_KEYS)}")
    if unknown := sorted(entry.keys() - set(_KEYS)):
        raise UserError(f"{where} has the unknown key {', '.join(unknown)}: the keys are {', '.join(_KEYS)}")
    source, options = entry.get("source", name), entry.get("options", {})
    if not isinstance(source, str):
        raise UserError(f"{where} has the source {source!r}: it must be text, the name of a source or of a file")
    if not isinstance(options, Mapping):
        raise UserError(f"{where} has the options {options!r}: they must be an object")
    weight = entry.get("weight", 1)
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not is_number or not 0 < weight <= LARGEST:  # the sum of all weights must be finite, too
        raise UserError(
            f"{where} has the weight {short_repr(weight)}: it must be a number above 0 and at most {LARGEST}; leave an "
            "unwanted set out"
        )
