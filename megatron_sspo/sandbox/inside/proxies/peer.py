"""One side of the protocol between the judge and the program: values, objects, and calls in both directions."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from _thread import RLock  # without the rest of `threading`, which takes longer to load
from collections.abc import Callable, Iterator, Sequence

from megatron_sspo.sandbox.inside.common import wire
from megatron_sspo.sandbox.inside.proxies import errors, mirror, values
from megatron_sspo.sandbox.inside.proxies.classes import DATA, data_base_of, describe, has_real_name
from megatron_sspo.sandbox.inside.proxies.operations import OPERATIONS, STOPPING
from megatron_sspo.sandbox.inside.proxies.shared import SharedContainers, tag_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_REPLIES = ("ok", "stop", "raised", "unsendable")
_set_recursion_limit = sys.setrecursionlimit  # tests' own calls of it are passed to the program
_RECURSION_LIMIT = 10_000  # for some 1,000 nested lists
# Modules whose types are equal on both sides. None of them executes its arguments.
_SHARED_TYPES = frozenset(("builtins", "collections", "datetime", "decimal", "fractions", "numpy", "uuid", "zoneinfo"))


@contextlib.contextmanager
def _deep_recursion() -> Iterator[None]:
    """Allows as deep a nesting of values as Python itself can compare, inside this context."""
    before = sys.getrecursionlimit()
    _set_recursion_limit(max(before, _RECURSION_LIMIT))
    try:
        yield
    finally:
        _set_recursion_limit(before)


class Peer:
    """Requests operations on the other side's objects, and meanwhile serves the other side's requests.

    Args:
        receiving, sending: file descriptors of the pipes.
        parity: 0 for the judge and 1 for the program; see `SharedContainers`.
    """

    trusts_operators = True

    def __init__(self, receiving: int, sending: int, parity: int) -> None:
        self._receiving = receiving
        self._sending = sending
        self._lock = RLock()
        self._shared = SharedContainers(parity, self.encode, self.decode, self.on_change)
        self._exported: dict[int, Any] = {}  # keeps the objects alive, so that no id is used twice
        self._numbers: dict[int, int] = {}
        self._described: set[int] = set()
        self._describing: set[int] = set()  # classes that the current message describes
        self._proxies: dict[int, Any] = {}
        self._classes: dict[int, type] = {}
        self._num_open = 0  # requests of this side without a reply
        self._num_waiting = 0  # calls of `wait`; all other open requests were interrupted
        self._is_cut = False  # whether an exception has interrupted a message

    # ------------------------------------------------------------------ messages

    def request(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
        """Requests an operation from the other side; returns its result or raises its exception.

        The handler of a signal may interrupt it with an exception, such as that of a time limit. The reply is dropped
        when it comes.
        """
        with self._lock:
            if self._num_waiting:
                self._check_order()
            self.send_request(operation, arguments, keywords)
            return self.wait(operation)

    def send_request(self, operation: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        """Sends a request; `wait` returns its result."""
        self.send(
            lambda: ["request", operation, self.encode_all(arguments), self.encode_named(keywords)], is_request=True
        )

    def wait(self, operation: str) -> Any:
        """Waits for an operation, serving the other side; returns its result or raises its exception."""
        self._num_waiting += 1
        try:
            while True:
                match self.receive():
                    case ["request", str(requested), [*arguments], dict(keywords)]:
                        self._check_order()
                        self.answer(requested, arguments, keywords)
                    case ["ok", value]:
                        return self.checked_decode(value)
                    case ["stop", value] if operation in STOPPING:
                        raise STOPPING[operation](*([] if value is None else [self.checked_decode(value)]))
                    case ["raised", error]:
                        found = self.checked_decode(error)
                        if not isinstance(found, BaseException):
                            raise wire.Broken("the program broke the protocol")
                        raise self.convert_error(found)
                    case ["unsendable", str(text)]:
                        raise self.handle_unsendable(text)
                    case _:
                        raise wire.Broken("the program broke the protocol")
        finally:
            self._num_waiting -= 1

    def send(self, make: Callable[[], list[Any]], *, is_request: bool = False) -> None:
        """Sends the message that a function makes, together with the changes of this side's containers."""
        with self._lock:
            self._check_whole()
            changes = self._shared.changes()
            dropped = self._shared.drop_unused()
            self._describing.clear()
            try:
                with _deep_recursion():
                    content = wire.pack([dropped, changes, make()])
                self._is_cut = True
                wire.write(self._sending, content)
                self._num_open += is_request
                self._is_cut = False
            except BaseException:
                self._described -= self._describing
                self._shared.drop_unsynced()
                raise
            self._shared.mark_synced()

    def receive(self) -> Any:
        """Receives a message, and applies the changes of the other side's containers; drops late replies."""
        while True:
            wire.wait(self._receiving)  # an exception in here interrupts no message
            self._check_whole()
            self._is_cut = True
            body = self._read()
            is_reply = bool(body) and body[0] in _REPLIES
            is_late = is_reply and self._num_open > self._num_waiting
            self._num_open = max(0, self._num_open - is_reply)
            if is_late and body[0] != "unsendable":
                self.checked_decode(["list-of", *body[1:]])  # describes classes and containers that come again
            self._is_cut = False
            if not is_late:
                return body

    def _read(self) -> list[Any]:
        with _deep_recursion():
            message = wire.read(self._receiving)
        match message:
            case [[*dropped], [*changes], [*body]]:
                try:
                    self._shared.apply(changes)
                    for number in dropped:
                        self._shared.remove(number)
                except Exception as error:
                    raise wire.Broken(f"the program broke the protocol: {error}") from error
                return body
        raise wire.Broken("the program broke the protocol")

    def _check_order(self) -> None:
        """Raises `Broken` if it is unknown whether the reply to an interrupted request or another one comes next."""
        if self._num_open > self._num_waiting:
            raise wire.Broken("a request was interrupted, and the order of the replies is unknown")

    def _check_whole(self) -> None:
        if self._is_cut:
            raise wire.Broken("a message was interrupted")

    def checked_decode(self, message: Any) -> Any:
        """Decodes a value of the other side; raises `Broken` if the message is invalid."""
        try:
            with _deep_recursion():
                value = self.decode(message)
            self._shared.mark_synced()
        except (wire.Broken, wire.Unsendable):
            raise
        except Exception as error:
            raise wire.Broken(f"the program broke the protocol: {type(error).__name__}") from error
        return value

    def answer(self, operation: str, arguments: list[Any], keywords: dict[str, Any]) -> None:
        """Carries out a request of the other side, and replies."""
        try:
            value = self.perform(operation, self.checked_decode(["list-of", *arguments]), keywords)
        except wire.Broken:
            raise
        except wire.Unsendable as error:
            text = str(error)
            return self.send(lambda: ["unsendable", text])
        except BaseException as error:
            make = self._failure(operation, error)
        else:
            make = lambda: ["ok", self.encode(value)]  # noqa: E731
        try:
            self.send(make)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:500]
            self.send(lambda: ["unsendable", text])
        return None

    def _failure(self, operation: str, error: BaseException) -> Callable[[], list[Any]]:
        stopping = STOPPING.get(operation)
        if stopping is not None and isinstance(error, stopping):
            value = error.args[0] if error.args else None
            return lambda: ["stop", self.encode(value)]
        found = error.with_traceback(None)
        return lambda: ["raised", self.encode(found)]

    def perform(self, operation: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Carries out an operation."""
        named = {name: self.checked_decode(part) for name, part in keywords.items()}
        return OPERATIONS[operation](*arguments, **named)

    # ------------------------------------------------------------------ differences between the two sides

    def on_change(self, container: Any, tag: str, items: list[Any]) -> None:
        """Handles a change that the other side made to a container of this side, before it is applied."""

    def convert_error(self, error: BaseException) -> BaseException:
        """Returns the exception to raise for one that the other side raised."""
        return error

    def handle_unsendable(self, text: str) -> BaseException:
        """Returns the exception to raise for a value that could not be passed."""
        return TypeError(text)

    # ------------------------------------------------------------------ values to messages

    def encode_all(self, items: Any) -> list[Any]:
        """Encodes a sequence of values."""
        return [self.encode(item) for item in items]

    def encode_named(self, items: dict[str, Any]) -> dict[str, Any]:
        """Encodes the values of keyword arguments."""
        return {name: self.encode(item) for name, item in items.items()}

    def encode(self, value: Any) -> Any:
        """Returns a value as JSON."""
        message = values.encode(value, self.encode)
        if message is not NotImplemented:
            return message
        tag = tag_of(value)
        handle = mirror.handle_of(value)
        if tag is not None:
            return self._encode_container(value, tag, handle)
        if handle is not None:
            return ["exported", handle.number]
        if isinstance(value, BaseException):
            return self._encode_error(value)
        if isinstance(value, type):
            return self._encode_class(value)
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        for kind in DATA:
            if isinstance(value, kind) and not (value is True or value is False):
                plain = value + 0 if kind in (float, complex) else kind.__new__(kind, value)
                if kind in (tuple, frozenset):
                    plain = kind(kind.__iter__(value))
                elif kind is str:
                    plain = str.__str__(value)
                elif kind is int:
                    plain = int.__index__(value)
                elif kind is float:
                    plain = float.__float__(value)
                return ["derived", self.export(value), self._describe_class(type(value)), self.encode(plain)]
        special = self.encode_callable(value)
        if special is not None:
            return special
        return ["object", self.export(value), self._describe_class(type(value))]

    def _encode_container(self, value: Any, tag: str, handle: Any) -> Any:
        if handle is not None:
            return self._shared.encode(value, tag) if self._shared.contains(value) else ["exported", handle.number]
        kind = type(value)
        is_plain = kind.__name__ in (tag, "ndarray") and kind.__module__ in ("builtins", "collections", "numpy")
        if is_plain or self._shared.contains(value):
            return self._shared.encode(value, tag)
        return self._shared.encode(value, tag, [self.export(value), self._describe_class(kind)])

    def export(self, value: Any) -> int:
        """Returns the number by which the other side can refer to a value."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._exported)
            self._exported[number] = value
        return number

    def _encode_error(self, error: BaseException) -> list[Any]:
        if (theirs := vars(error).get(mirror.FIELD)) is not None:
            return ["exported", theirs.number]
        number = self.export(error)
        fields = errors.fields_of(error)
        given = BaseException.args.__get__(error)  # pyright: ignore[reportAttributeAccessIssue]
        parts = [self.encode_all(given), self.encode_named({str(name): part for name, part in fields.items()})]
        causes = [
            self._encode_error(part) if part is not None and id(part) not in self._numbers else None
            for part in (error.__cause__, error.__context__)
        ]
        return ["error", number, self._encode_class(type(error)), *parts, *causes, error.__suppress_context__]

    def _encode_class(self, kind: type) -> list[Any]:
        handle = mirror.handle_of(kind)
        if handle is not None:
            return ["exported", handle.number]
        if self.is_library_type(kind):
            return ["library", kind.__module__, kind.__qualname__]
        return self._describe_class(kind)

    def _describe_class(self, kind: type) -> list[Any]:
        number = self.export(kind)
        if number in self._described:
            return ["class", number]
        self._described.add(number)
        self._describing.add(number)
        bases, base, special, members = describe(kind)
        parts = [[self._encode_class(part) for part in bases], special, members]
        return ["class", number, [kind.__module__, kind.__name__], *parts, self._encode_class(base) if base else None]

    def is_library_type(self, kind: type) -> bool:
        """Returns whether a type is passed by its name."""
        return kind.__module__ in _SHARED_TYPES and has_real_name(kind)

    def encode_callable(self, value: Any) -> list[Any] | None:
        """Returns the message of a function that is not passed as an object; None for all others."""
        return None

    # ------------------------------------------------------------------ messages to values

    def decode(self, message: Any) -> Any:
        """Returns the value of a message."""
        if not isinstance(message, list):
            return message
        value = values.decode(message, self.decode)
        if value is not NotImplemented:
            return value
        match message:
            case ["list-of", *parts]:
                return [self.decode(part) for part in parts]
            case ["new" | "ref", *_]:
                return mirror.returned(self._shared.decode(message, self._make_derived))
            case ["exported", int(number)]:
                return self._exported[number]
            case ["object", int(number), kind]:
                if number not in self._proxies:
                    made = object.__new__(self._decode_mirror(kind))
                    self._proxies[number] = mirror.attach(made, self, number)
                return self._proxies[number]
            case ["derived", int(number), kind, plain]:
                made = self._decode_mirror(kind)
                if number not in self._proxies:
                    data = self.decode(plain)
                    value = mirror.base_of(made).__new__(made, data)
                    self._proxies[number] = mirror.attach(value, self, number)
                return mirror.returned(self._proxies[number])
            case ["error", int(number), kind, [*arguments], dict(fields), cause, context, bool(is_suppressed)]:
                error = self._decode_error(number, self._decode_class(kind), arguments, fields)
                if cause is not None:
                    error.__cause__ = self.decode(cause)
                if context is not None:
                    error.__context__ = self.decode(context)
                error.__suppress_context__ = is_suppressed
                return error
            case ["class", *_] | ["library", str(), str()]:
                return self._decode_class(message)
            case ["module", str(name)]:
                return self.module(name)
            case ["function", int(number), *parts]:
                return self.decode_function(number, parts)
        raise ValueError("not a message of this protocol")

    def decode_function(self, number: int, parts: list[Any]) -> Any:
        """Returns a function that calls a function of the other side."""
        raise ValueError("not a message of this protocol")

    def _make_derived(self, message: Any, base: type) -> Any:
        number, kind = message
        made = self._decode_mirror(kind)
        if mirror.base_of(made) is not base:
            raise ValueError("a class is not derived from the type that its message names")
        value = base.__new__(made)  # pyright: ignore[reportCallIssue]
        self._proxies[number] = mirror.attach(value, self, number)
        return value

    def _decode_error(self, number: int, kind: type, arguments: list[Any], fields: dict[str, Any]) -> Any:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError("not an exception")
        found = {name: self.decode(part) for name, part in fields.items() if name != mirror.FIELD}
        if number not in self._proxies:
            error = errors.make_error(kind, tuple(map(self.decode, arguments)), found)
            self._proxies[number] = mirror.attach(error, self, number)
        errors.set_fields(self._proxies[number], found)
        return mirror.returned(self._proxies[number])

    def _decode_mirror(self, message: Any) -> type:
        kind = self._decode_class(message)
        if not isinstance(kind, mirror.Mirror):
            raise ValueError("not a class of the other side")
        return kind

    def _decode_class(self, message: Any) -> type:
        match message:
            case ["library", str(module), str(name)]:
                return self.library(module, name)
            case ["class", int(number)]:
                return self._classes[number]
            case ["class", int(number), [str(module), str(name)], [*bases], [*special], [*members], base]:
                if (known := errors.library_error(module, name)) is not None:
                    self._classes[number] = known
                    return known
                found = [self._decode_class(part) for part in bases]
                data = self._decode_class(base) if base is not None else None
                if any(part[0] == "library" for part in bases) or (data and data_base_of(data) is not data):
                    raise ValueError(f"the bases of {name} are not those that a program can have")
                names = [str(part) for part in special], [str(part) for part in members]
                self._classes[number] = mirror.make_class(self, number, name, found, *names, data)
                return self._classes[number]
            case ["exported", int(number)]:
                return self._exported[number]
        raise ValueError("not a class")

    def library(self, module: str, name: str) -> Any:
        """Returns a type of the standard library or of numpy, by its name."""
        if module not in _SHARED_TYPES:
            raise ValueError(f"{module}.{name} is not passed by its name")
        found = getattr(importlib.import_module(module), name)
        if not isinstance(found, type):
            raise ValueError(f"{module}.{name} is not a type")
        if found is type:  # a function of the test that calls it would make a class with the program's own `__eq__`
            raise wire.Unsendable("the class `type`")
        return found

    def module(self, name: str) -> Any:
        """Returns a module by its name."""
        return importlib.import_module(name)
