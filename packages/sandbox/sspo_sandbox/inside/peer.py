"""`Peer`: one end of the dialogue. It asks the other end for operations, and performs those that it is asked for."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence

from sspo_sandbox.inside import values
from sspo_sandbox.inside.handle import DATA, OPERATIONS, Handle
from sspo_sandbox.inside.lazy import Any
from sspo_sandbox.inside.shared import Shared
from sspo_sandbox.inside.wire import Broken, Pipe


class Peer:
    """One of the two processes.

    Attributes:
        is_judge: whether it is the process that holds the tests.
        own: the objects that the other process has handles of, by number.
        is_broken: whether the other process has ended or sent a message that violates the protocol.
        raised: the last exceptions that the other process has raised.
    """

    def __init__(self, pipe: Pipe, *, is_judge: bool = False) -> None:
        self.is_judge = is_judge
        self.own: dict[int, Any] = {}
        self.error_classes: dict[int, type] = {}
        self.is_broken = False
        self.raised: list[BaseException] = []
        self.shared = Shared(self, 0 if self.is_judge else 1)
        self._pipe = pipe
        self._numbers: dict[int, int] = {}
        self._handles: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self._count = 0

    def request(
        self,
        operation: str,
        target: int,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        trusted: bool = False,
    ) -> Any:
        """Asks for an operation on an object of the other process, and returns the result or raises the exception.

        Args:
            trusted: whether an object that the tests do not know yet is trusted if it is returned, see `Handle`.

        Raises:
            Broken: the other process has ended, or violates the protocol.
        """
        with self._lock:
            self._count = number = self._count + 1
            encoded = {name: self.encode(value) for name, value in (kwargs or {}).items()}
            self._send(["ask", number, operation, target, [self.encode(value) for value in args], encoded])
            while True:
                message = self._receive(trusted)
                if message[0] == "ask":
                    self._answer(message)
                elif message[1] == number:  # else a signal's handler has left the call that this answers
                    break
        if message[0] == "ok":
            return message[2]
        error = message[2]
        self.raised.append(error)
        if isinstance(error, StopIteration) and operation not in ("next", "send", "throw"):
            raise RuntimeError("the program raised StopIteration")  # it would end a loop of the test
        raise error

    def serve(self) -> None:
        """Answers the other process until it ends."""
        while True:
            self._answer(self._receive())

    def perform(self, operation: str, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Returns the result of an operation that the other process has asked for."""
        return OPERATIONS[operation](value, *args, **kwargs)

    # ------------------------------------------------------------------ values

    def encode(self, value: Any) -> Any:
        """Returns a value as JSON."""
        return values.encode(self, value)

    def decode(self, message: Any) -> Any:
        """Returns the value of a message."""
        return values.decode(self, message)

    def export(self, value: Any) -> int:
        """Returns the number by which the other process knows an object of this one."""
        number = self._numbers.setdefault(id(value), len(self.own))
        self.own[number] = value
        return number

    def encode_object(self, value: Any) -> list[Any]:
        """Returns an object as its number, with what the other process has to know to represent it."""
        base = next((base.__name__ for kind, base in DATA if isinstance(value, kind)), None)
        return ["object", self.export(value), base, isinstance(value, type)]

    def handle(self, number: int, base: str | None, is_class: bool) -> Any:
        """Returns what stands for an object of the other process: the same handle each time. It is not trusted."""
        if (found := self._handles.get(number)) is None:
            found = self._handles[number] = object.__new__(Handle)
            kind = next((kind for _, kind in DATA if kind.__name__ == base), None)
            for name, value in {"peer": self, "number": number, "base": kind, "is_class": is_class}.items():
                object.__setattr__(found, f"__{name}__", value)
        return self._with_trust(found, False)

    def named(self, name: str, value: Any) -> Any:
        """Returns a value that was got by a name: a class is trusted if its last name was a capitalized one."""
        is_class = type(value) is Handle and value.__is_class__
        return self._with_trust(value, name[:1].isupper()) if is_class else value

    def _with_trust(self, handle: Handle, is_trusted: bool) -> Handle:
        object.__setattr__(handle, "__trusted__", is_trusted)
        return handle

    # ------------------------------------------------------------------ messages

    def _send(self, message: list[Any]) -> None:
        message.append(self.shared.take_changes())
        message.append(self.shared.take_unheld())
        try:
            self._pipe.send(message)
        except Broken:
            self.is_broken = True
            raise

    def _receive(self, trusted: bool = False) -> list[Any]:
        """Returns a message with its values decoded: ["ask", number, operation, target, arguments, keywords], or "ok"
        or "raised" with the number of the request and the result."""
        try:
            *message, changes, unheld = self._pipe.receive()
            try:
                self.shared.update(changes)
                if message[0] == "ask":
                    message[4] = [self.decode(value) for value in message[4]]
                    message[5] = {name: self.decode(value) for name, value in message[5].items()}
                else:
                    message[2] = self._result(message[2], trusted)
                    if message[0] != "ok" and not isinstance(message[2], BaseException):
                        raise TypeError("no exception")
                self.shared.forget(unheld)
            except Exception as error:
                raise Broken(f"a message violates the protocol: {type(error).__name__}: {error}") from None
        except Broken:
            self.is_broken = True
            raise
        return message

    def _result(self, message: Any, trusted: bool) -> Any:
        match message:
            case ["object", number, _, _] if trusted:  # of an object that the tests have, as for +=, or of a new one
                before = self._handles.get(number)
                is_trusted = before is None or before.__trusted__
                found = self.decode(message)
                return self._with_trust(found, is_trusted) if type(found) is Handle else found
        return self.decode(message)

    def _answer(self, message: list[Any]) -> None:
        _, number, operation, target, args, kwargs = message
        message.clear()  # so that nothing here holds the arguments' containers
        try:
            reply = ["ok", number, self.encode(self.perform(operation, self.own[target], args, kwargs))]
        except Broken:
            raise
        except BaseException as error:
            reply = ["raised", number, values.encode_error(self, error)]
        del args, kwargs
        self._send(reply)
