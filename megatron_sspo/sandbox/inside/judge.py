"""The process that holds the tests. The program lives in another one, from which only data comes.

The program is forked off before this process has read the tests, and gets no descriptor of the verdict; this process's
memory is hidden from it. So the program can neither read what is expected of it, nor change how it is judged: whatever
it does to its own builtins, output, exit code or comparison operators, the asserts are evaluated here.
"""

import builtins
import importlib
import json
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any

from megatron_sspo.sandbox.inside import wire
from megatron_sspo.sandbox.inside.program import read_job, remember_lines
from megatron_sspo.sandbox.inside.start import forget_us
from megatron_sspo.sandbox.inside.subject import Subject

# Modules that a program may have imported for its tests: none in which a value could become code.
_SHARED_MODULES = frozenset(
    (
        *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "heapq", "itertools", "json"),
        *("math", "numpy", "random", "re", "statistics", "string", "typing"),
    )
)


def judge(job: int, channel: int) -> None:
    """Runs a job's tests and writes the verdict, with the job's nonce, into the channel."""
    to_subject, from_judge = os.pipe()
    to_judge, from_subject = os.pipe()
    subject = os.fork()
    if subject == 0:
        wire.close_all_but({0, 1, 2, to_subject, from_subject})
        forget_us()
        Subject(to_subject, from_subject).serve()
    os.close(to_subject)
    os.close(from_subject)
    wire.hide_from_relatives()
    work = read_job(job)
    client = Client(to_judge, from_judge)
    reason, detail = _verdict(client, work["program"], work["tests"])
    if client.is_broken and _died_of_its_cpu_limit(subject):
        reason, detail = "time", "the limit on CPU seconds"
    with open(channel, "w") as file:
        json.dump({"nonce": work["nonce"], "reason": reason, "detail": detail[:2000]}, file)
    os._exit(0)  # the first process of the sandbox ends, and with it all others


def _died_of_its_cpu_limit(child: int) -> bool:
    for _ in range(50):  # its pipes close a moment before it is dead, or it has closed them and lives
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status) == -signal.SIGXCPU
        time.sleep(0.01)
    return False


def _verdict(client: "Client", program: str, tests: list[str]) -> tuple[str, str]:
    try:
        client.load(program)
    except wire.Broken as error:
        return "error", str(error)
    except BaseException as error:
        return ("memory" if isinstance(error, MemoryError) else "error"), f"{type(error).__name__}: {error}"
    sys.modules["solution"] = _Solution(client)
    namespace = _Namespace(client)
    for number, test in enumerate(tests, start=1):
        name = f"test {number}"
        remember_lines(name, test)
        try:
            exec(compile(test, name, "exec", dont_inherit=True), namespace)
        except wire.Broken as error:
            return "error", f"{name}: {error}"
        except BaseException as error:
            return ("memory" if isinstance(error, MemoryError) else "failed"), _describe(name, error)
    return ("passed", "") if not client.is_broken else ("error", "the program ended, or broke the protocol")


def _describe(name: str, error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    line = f", {frames[-1].line}" if frames else ""
    return f"{name}{line}: {type(error).__name__}: {error}"


class Client:
    """Asks the program's process, and serves the calls that it makes of the tests' own functions meanwhile."""

    def __init__(self, receiving: int, sending: int) -> None:
        self._receiving = receiving
        self._sending = sending
        self._proxies: dict[int, Proxy] = {}
        self._exceptions: dict[int, type[Exception]] = {}
        self._functions: list[Any] = []
        self.is_broken = False

    def load(self, program: str) -> None:
        """Has the program executed; raises what it raised."""
        self._ask(program, [], {})

    def name(self, name: str) -> Any:
        """The program's global of that name."""
        return self._ask(["name", name], [], {})

    def apply(self, function: str, *arguments: Any, **keywords: Any) -> Any:
        """A function of `subject.py` on the program's objects and on copies of plain data."""
        positional = [self.encode(value) for value in arguments]
        named = {name: self.encode(value) for name, value in keywords.items()}
        return self._ask([function, positional, named], arguments, keywords)

    def _ask(self, message: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
        if self.is_broken:
            raise wire.Broken("the program has ended")
        try:
            wire.write(self._sending, message)
            while True:
                match wire.read(self._receiving):
                    case ["ok", value, list(changes)]:
                        for place, changed in changes:
                            _change((keywords if isinstance(place, str) else arguments)[place], self.decode(changed))
                        return self.decode(value)
                    case ["raised", kind, str(text)]:
                        error = self.decode(kind)
                        raise (error if isinstance(error, type) and issubclass(error, Exception) else RuntimeError)(
                            text
                        )
                    case ["call back", int(number), list(positional), dict(named)]:
                        self._call_back(number, positional, named)
                    case _:
                        raise wire.Broken("the program broke the protocol")
        except wire.Broken:
            self.is_broken = True
            raise

    def _call_back(self, number: int, positional: list[Any], named: dict[str, Any]) -> None:
        try:
            function = self._functions[number]
            value = function(*map(self.decode, positional), **{name: self.decode(v) for name, v in named.items()})
            reply = ["returned", self.encode(value)]
        except Exception as error:
            reply = ["failed", f"{type(error).__name__}: {error}"[:2000]]
        wire.write(self._sending, reply)

    def encode(self, value: Any) -> Any:
        return wire.encode(value, self._export)

    def _export(self, value: Any) -> list[Any]:
        if isinstance(value, Proxy):
            return ["object", object.__getattribute__(value, "_number")]
        for number, kind in self._exceptions.items():
            if value is kind:
                return ["object", number]
        if isinstance(value, Iterator):
            return ["list", *(self.encode(item) for item in value)]
        if callable(value):
            self._functions.append(value)
            return ["function", len(self._functions) - 1]
        raise TypeError(f"a test cannot pass an object of type {type(value).__name__} to the program: only plain data")

    def decode(self, message: Any) -> Any:
        return wire.decode(message, self._import)

    def _import(self, message: list[Any]) -> Any:
        match message:
            case ["object", int(number)]:
                return self._proxies.setdefault(number, Proxy(self, number))
            case ["exception", int(number), [*names]]:
                if number not in self._exceptions:
                    self._exceptions[number] = _exception_class([str(name) for name in names])
                return self._exceptions[number]
            case ["module", str(name)] if name in _SHARED_MODULES:
                return importlib.import_module(name)
            case _:
                raise TypeError(
                    f"the program's {message[:2]} cannot be used in a test: only plain data and its objects"
                )


def _change(ours: Any, theirs: Any) -> None:
    """Makes an argument what the program's copy of it has become."""
    if type(ours) is not type(theirs):
        raise wire.Broken("the program broke the protocol")
    if isinstance(ours, (list, bytearray)):
        ours[:] = theirs
    elif isinstance(ours, (dict, set)):
        ours.clear()
        ours.update(theirs)


def _exception_class(names: list[str]) -> type[Exception]:
    """The builtin exception of that name, or a class of our own below the nearest."""
    for name in names:
        base = getattr(builtins, name, None)
        if isinstance(base, type) and issubclass(base, Exception):
            return base if name == names[0] else type(names[0], (base,), {})
    return RuntimeError  # SystemExit and the like, which must not end the judge


class _Namespace(dict):
    """The tests' globals: their own names, Python's, and then the program's."""

    def __init__(self, client: Client) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self._client = client

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)  # Python looks among its own: no program can stand in for `len` or `sorted`
        return self._client.name(name)


class _Solution(types.ModuleType):
    """For tests that say `from solution import f`."""

    def __init__(self, client: Client) -> None:
        super().__init__("solution")
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._client.name(name)
        except KeyError:
            raise AttributeError(name) from None


def _unary(name: str) -> Any:
    def function(self: "Proxy") -> Any:
        return self._apply(name)

    return function


def _binary(name: str, reflected: bool = False) -> Any:
    def function(self: "Proxy", other: Any) -> Any:
        if not isinstance(other, Proxy):
            # The program would see what the test expects, and its own operator would be the judge of it.
            raise TypeError("a test cannot combine an object of the program with plain data: convert it first")
        return other._apply(name, self) if reflected else self._apply(name, other)

    return function


class Proxy:
    """An object of the program's, as the tests see it.

    It can be called, indexed, iterated, converted to plain data, and its attributes read and set. Comparing it with
    plain data is False, and combining it with plain data an error: the program's own operators would decide, and see
    what is expected.
    """

    def __init__(self, client: Client, number: int) -> None:
        object.__setattr__(self, "_client", client)
        object.__setattr__(self, "_number", number)

    def _apply(self, function: str, *arguments: Any, **keywords: Any) -> Any:
        return self._client.apply(function, self, *arguments, **keywords)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._apply("call", *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return self._apply("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._apply("setattr", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._apply("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._apply("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._apply("delitem", key)

    def __instancecheck__(self, value: Any) -> bool:
        return bool(self._apply_to_class(value))

    def _apply_to_class(self, value: Any) -> Any:
        return self._client.apply("isinstance", value, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and (self is other or self._apply("eq", other) is True)

    def __hash__(self) -> int:
        return object.__getattribute__(self, "_number")

    __len__, __iter__, __next__ = _unary("len"), _unary("iter"), _unary("next")
    __str__, __repr__, __bool__ = _unary("str"), _unary("repr"), _unary("bool")
    __int__, __float__, __index__ = _unary("int"), _unary("float"), _unary("index")
    __neg__, __abs__ = _unary("neg"), _unary("abs")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    __contains__ = _binary("contains")
    __add__, __sub__, __mul__ = _binary("add"), _binary("sub"), _binary("mul")
    __truediv__, __floordiv__, __mod__ = _binary("truediv"), _binary("floordiv"), _binary("mod")
    __pow__, __matmul__ = _binary("pow"), _binary("matmul")
    __and__, __or__, __xor__ = _binary("and_"), _binary("or_"), _binary("xor")
    __radd__, __rsub__, __rmul__ = _binary("add", True), _binary("sub", True), _binary("mul", True)
    __rtruediv__, __rmod__ = _binary("truediv", True), _binary("mod", True)
