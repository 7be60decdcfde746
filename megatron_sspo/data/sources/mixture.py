"""A mixture of several sets as one source."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from megatron_sspo.data.open import load_rows
from megatron_sspo.data.row import Dropped, Row
from megatron_sspo.errors import UserError

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
        UserError: a key is unknown, a weight is not above 0, only some of the sets have weights, or a source raises
            one.
    """
    mixed: list[Row | Dropped] = []
    weighted = [name for name, entry in sets.items() if "weight" in entry]
    for name, entry in sets.items():
        share = float(entry.get("weight", 0))
        if (
            entry.keys() - set(_KEYS)
            or ("weight" in entry and not 0 < share < math.inf)
            or len(weighted) not in (0, len(sets))
        ):
            raise UserError(
                f"the set {name!r} of the mixture is {dict(entry)}: its keys are {', '.join(_KEYS)}, and either every "
                f"set has a weight, a number above 0, or none does (now: {', '.join(weighted) or 'none'})"
            )
        for row in load_rows(entry.get("source", name), entry.get("options", {})):
            if isinstance(row, Row):
                if row.share:
                    raise UserError(
                        f"the set {name!r} of the mixture has weights of its own: list its sets in one mixture, with "
                        "the product of the weights"
                    )
                row = replace(row, subset=name, share=share)
            mixed.append(replace(row, id=f"{name}/{row.id}"))
    return mixed
