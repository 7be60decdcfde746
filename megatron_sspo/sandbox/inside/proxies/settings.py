"""Settings of the interpreter that a test changes, and that hold for the program too, as in one process.

They are the seeds of the random generators, the recursion limit, the environment and the precision of decimals.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_PLAIN = (int, float, str, bytes, type(None))
# Functions that change a setting; each is watched only if the tests have its last name, since imports take long.
_FUNCTIONS = (("random", "seed"), ("numpy.random", "seed"), ("sys", "setrecursionlimit"))


class Settings:
    """The settings that the tests have changed since they were last passed to the program.

    Args:
        tests: the tests' texts.
    """

    def __init__(self, tests: Iterable[str]) -> None:
        text = "\n".join(tests)
        self._called: list[list[Any]] = []
        for module, name in _FUNCTIONS:
            if name in text and (module != "numpy.random" or "np." in text or "numpy" in text):
                self._watch(module, name)
        self._has_environment = "env" in text
        self._has_precision = "prec" in text or "context" in text
        self._environment = dict(os.environ)
        self._precision = self._current_precision()

    def _watch(self, module: str, name: str) -> None:
        try:
            owner = importlib.import_module(module)
        except ImportError:
            return
        function: Callable[..., Any] = getattr(owner, name)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            found = function(*arguments, **keywords)
            if all(type(argument) in _PLAIN for argument in (*arguments, *keywords.values())):
                self._called.append([module, name, [*arguments, *keywords.values()]])
            return found

        setattr(owner, name, watched)

    def _current_precision(self) -> int:
        return sys.modules["decimal"].getcontext().prec if self._has_precision and "decimal" in sys.modules else 0

    def take(self) -> list[list[Any]]:
        """Returns the changes since the last call: a module, a name and the arguments or the new value of each."""
        found, self._called = self._called, []
        if self._has_environment and (now := dict(os.environ)) != self._environment:
            self._environment = now
            found.append(["os", "environ", now])
        if (precision := self._current_precision()) != self._precision:
            self._precision = precision
            found.append(["decimal", "prec", precision])
        return found


def apply(module: str, name: str, value: Any) -> None:
    """Makes a change of the tests in the program's process."""
    if (module, name) == ("os", "environ"):
        os.environ.clear()
        os.environ.update(value)
    elif (module, name) == ("decimal", "prec"):
        importlib.import_module("decimal").getcontext().prec = value
    elif (module, name) in _FUNCTIONS:
        getattr(importlib.import_module(module), name)(*value)
