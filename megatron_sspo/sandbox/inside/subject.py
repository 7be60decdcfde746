"""The process of the program that is judged: loads it, and then does what the judge asks of it.

It has neither the tests nor a way to the verdict: nothing that happens here can do more than answer wrongly.
"""

import builtins
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from megatron_sspo.sandbox.inside import wire
from megatron_sspo.sandbox.inside.program import execute

_MODULE = "solution"

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *arguments, **keywords: function(*arguments, **keywords),
    "getattr": getattr,
    "setattr": setattr,
    **{name: getattr(builtins, name) for name in ("len", "iter", "next", "str", "repr", "int", "float", "bool", "abs")},
    "isinstance": isinstance,
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem", "neg", "index")},
    **{name: getattr(operator, name) for name in ("eq", "lt", "le", "gt", "ge", "contains", "add", "sub", "mul")},
    **{name: getattr(operator, name) for name in ("truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "matmul")},
}


class Subject:
    """The program's objects, by the numbers under which the judge knows them."""

    def __init__(self, receiving: int, sending: int) -> None:
        self._receiving = receiving
        self._sending = sending
        self._objects: dict[int, Any] = {}
        self._globals: dict[str, Any] = {}

    def serve(self) -> None:
        """Until the judge is gone."""
        try:
            self._load(wire.read(self._receiving))
            while True:
                self._answer(wire.read(self._receiving))
        except wire.Broken:
            os._exit(0)

    def _load(self, source: str) -> None:
        try:
            self._globals = execute(source, _MODULE)
        except SystemExit as error:
            self._globals = vars(sys.modules[_MODULE])
            if error.code not in (None, 0):
                return self._report(error)
        except BaseException as error:
            return self._report(error)
        return wire.write(self._sending, ["ok", None, []])

    def _answer(self, message: Any) -> None:
        try:
            if message[0] == "name":
                value, changes = self._globals[message[1]], []
            else:
                value, changes = self._apply(message)
            reply = ["ok", self._encode(value), changes]
        except wire.Broken:
            raise
        except BaseException as error:
            return self._report(error)
        return wire.write(self._sending, reply)

    def _apply(self, message: Any) -> tuple[Any, list[Any]]:
        """Calls a function; also tells which of its arguments it changed, because the judge sent copies."""
        function = _FUNCTIONS[message[0]]
        arguments = [self._decode(part) for part in message[1]]
        keywords = {name: self._decode(part) for name, part in message[2].items()}
        value = function(*arguments, **keywords)
        changes: list[Any] = []
        for place, before, after in [
            *zip(range(len(arguments)), message[1], arguments, strict=True),
            *((name, message[2][name], after) for name, after in keywords.items()),
        ]:
            if isinstance(after, (list, dict, set, bytearray)) and (now := self._encode(after)) != before:
                changes.append([place, now])
        return value, changes

    def _report(self, error: BaseException) -> None:
        wire.write(self._sending, ["raised", self._encode(type(error)), str(error)[:2000]])

    def _encode(self, value: Any) -> Any:
        return wire.encode(value, self._export)

    def _export(self, value: Any) -> list[Any]:
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        self._objects[id(value)] = value  # kept alive, so that its number stays its own
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["exception", id(value), [base.__name__ for base in value.__mro__]]
        return ["object", id(value)]

    def _decode(self, message: Any) -> Any:
        return wire.decode(message, self._import)

    def _import(self, message: list[Any]) -> Any:
        tag, number = message
        if tag == "object":
            return self._objects[number]
        return lambda *arguments, **keywords: self._call_back(number, arguments, keywords)

    def _call_back(self, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Calls a function of the tests, while the judge waits for an answer."""
        positional = [self._encode(value) for value in arguments]
        wire.write(self._sending, ["call back", number, positional, {k: self._encode(v) for k, v in keywords.items()}])
        while True:
            message = wire.read(self._receiving)
            if message[0] == "returned":
                return self._decode(message[1])
            if message[0] == "failed":
                raise RuntimeError(message[1])
            self._answer(message)  # the function of the tests asks the program for something
