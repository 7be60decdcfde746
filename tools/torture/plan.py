"""Chooses the next fault: seeded, and every kind once before any kind is repeated."""

import random
import re
from collections import defaultdict
from collections.abc import Collection

from tools.torture.faults import KINDS, Kind, Moment


class Plan:
    """A sequence of faults.

    Args:
        seed: the seed of the order of kinds and of moments; the order also depends on the phases.
        able: the abilities of the machine: "mount", "shim".
        only: a regular expression for the names of the kinds to use; "" for all.
    """

    def __init__(self, seed: int, able: Collection[str], only: str = "") -> None:
        self._random = random.Random(f"plan:{seed}")
        wanted = [kind for kind in KINDS if re.search(only, kind.name)]
        self.kinds = [kind for kind in wanted if not kind.needs or kind.needs in able]
        self.not_run = [kind for kind in wanted if kind not in self.kinds]
        self._order = {kind.name: self._random.random() for kind in self.kinds}
        self.tried: defaultdict[str, float] = defaultdict(float)

    def next(self, phase: str, moments: Collection[Moment]) -> tuple[Kind, Moment] | None:
        """Returns the least tried kind that fits the phase and one of these moments, and the moment."""
        fit = [kind for kind in self.kinds if phase in kind.phases and set(kind.moments) & set(moments)]
        if not fit:
            return None
        least = min(fit, key=lambda kind: (self.tried[kind.name], self._order[kind.name]))
        self.tried[least.name] += 1
        return least, self._random.choice([moment for moment in least.moments if moment in moments])
