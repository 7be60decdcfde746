"""The process of the program that is judged: loads the program, then carries out the judge's requests.

It has neither the tests nor a way to write the verdict. The worst that code here can do is to answer wrongly.
"""

from __future__ import annotations

import importlib
import operator
import os
import sys

from megatron_sspo.sandbox.inside.common import wire
from megatron_sspo.sandbox.inside.common.program import execute
from megatron_sspo.sandbox.inside.proxies import settings
from megatron_sspo.sandbox.inside.proxies.peer import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_MODULE = "solution"


class ProgramSide(Peer):
    """The program's side of the protocol."""

    def __init__(self, receiving: int, sending: int) -> None:
        super().__init__(receiving, sending, parity=1)
        self._globals: dict[str, Any] = {}
        self._functions: dict[int, int] = {}
        self._originals: dict[str, Any] = {}  # standard streams and functions that a test has replaced

    def serve(self) -> None:
        """Answers requests until the judge has ended."""
        try:
            while True:
                match self.receive():
                    case ["request", str(operation), [*arguments], dict(keywords)]:
                        self.answer(operation, arguments, keywords)
                    case _:
                        break
        except wire.Broken:
            pass
        finally:
            os._exit(0)

    def perform(self, operation: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Carries out an operation on the program's objects."""
        if operation == "load":
            return self._load(*arguments)
        if operation == "name":
            (name,) = arguments
            return (True, self._globals[name]) if name in self._globals else (False, None)
        if operation == "defines":
            return self._defines(*arguments)
        if operation == "replace":
            return self._replace(*arguments)
        if operation == "set":
            return settings.apply(*arguments)
        return super().perform(operation, arguments, keywords)

    def _load(self, source: str) -> None:
        try:
            self._globals = execute(source, _MODULE)
        except SystemExit as error:
            self._globals = vars(sys.modules[_MODULE])
            if error.code not in (None, 0):
                raise

    def _defines(self, name: str, module: str) -> bool:
        """Returns whether a global is another object than the one that a library's module has under this name."""
        try:
            return getattr(importlib.import_module(module), name, None) is not self._globals[name]
        except ImportError:
            return True

    def _replace(self, module: str, name: str, value: Any) -> None:
        """Replaces a standard stream, `input` or `print` by an object of the tests; None restores the original."""
        original = self._originals.setdefault(name, getattr(sys.modules[module], name))
        setattr(sys.modules[module], name, original if value is None else value)

    def encode(self, value: Any) -> Any:
        """Returns a value as JSON; a function of the tests becomes a reference to the original."""
        number = self._functions.get(id(value))
        return super().encode(value) if number is None else ["exported", number]

    def library(self, module: str, name: str) -> Any:
        """Returns the class or function of an installed module that the tests named."""
        return operator.attrgetter(name)(importlib.import_module(module))

    def decode_function(self, number: int, parts: list[Any]) -> Any:
        """Returns a function that has the parameters of a function of the tests, and calls it."""
        if number in self._proxies:
            return self._proxies[number]
        name, documentation, parameters, passed, defaults = parts

        def call(*arguments: Any, **keywords: Any) -> Any:
            return self.request("call", made, *arguments, **keywords)

        own = name if name.isidentifier() else "function"
        scope: dict[str, Any] = {"call": call, "defaults": [self.decode(part) for part in defaults]}
        exec(f"def {own}({parameters}): return call({passed})", scope)
        made = scope[own]
        made.__name__ = made.__qualname__ = name
        made.__doc__, made.__module__ = documentation, "tests"
        self._proxies[number] = made
        self._functions[id(made)] = number
        return made
