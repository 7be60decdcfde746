"""Names that MLflow accepts for metrics and parameters."""

import itertools
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

_REFUSED = re.compile(r"[^\w./\- :]")  # characters, as in pass@1
_NO_FILE = re.compile(r"^\.*$|^\.\.")  # a part of a name that MLflow's store of files could not use
_LONGEST = 240  # characters of a name; MLflow allows 250


class Names:
    """The names of keys, a different one for each key: a_ and a__2 for a@ and a_."""

    def __init__(self) -> None:
        self._of_keys: dict[Hashable, str] = {}

    def of(self, key: Hashable, wanted: str) -> str:
        """Returns the name of a key: the wanted one, with a number if another key has it."""
        if key not in self._of_keys:
            taken, first = {*self._of_keys.values()}, wanted[:_LONGEST]
            numbered = itertools.chain([first], (f"{first}_{number}" for number in itertools.count(2)))
            self._of_keys[key] = next(name for name in numbered if name not in taken)
        return self._of_keys[key]


def clean(key: str) -> str:
    """Returns a key in the form of a name: held_out/pass_1.low for held_out/pass@1/low, and reward/_ for reward/.

    MLflow's store of files makes a file of each name, so held_out/pass_1 cannot be a folder too.
    """
    parts = _REFUSED.sub("_", key).split("/", 1)
    return "/".join(_NO_FILE.sub("_", part.replace("/", ".")) for part in parts)


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a configuration by names such as optimizer.lr."""
    names = Names()
    return {names.of(path, clean(".".join(path).replace("/", "."))): value for path, value in _leaves(config)}


def _leaves(config: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the values of a configuration by their paths, ("optimizer", "lr")."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value
