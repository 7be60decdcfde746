"""The judge's side of the protocol with the program."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Collection, Iterator

from megatron_sspo.sandbox.inside.common import wire
from megatron_sspo.sandbox.inside.proxies import errors, mirror, shared
from megatron_sspo.sandbox.inside.proxies.allowed import is_allowed
from megatron_sspo.sandbox.inside.proxies.classes import has_real_name, is_importable
from megatron_sspo.sandbox.inside.proxies.peer import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

    from megatron_sspo.sandbox.inside.proxies.files import OwnFiles
    from megatron_sspo.sandbox.inside.proxies.settings import Settings

# Modules that a program may import for its tests. None of them can turn a value into code.
SHARED_MODULES = frozenset(
    (
        *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq"),
        *("itertools", "json", "math", "numpy", "operator", "random", "re", "statistics", "string", "typing"),
    )
)
_LOOKUPS = ("name", "defines")  # operations that find a name of the tests, once: they are neither logged nor replayed
# What a test may replace to give the program its input, or to get its output.
_REPLACEABLE = (("sys", "stdin"), ("sys", "stdout"), ("sys", "stderr"), ("builtins", "input"), ("builtins", "print"))


class Reply:
    """An answer of the program while a check is evaluated.

    Attributes:
        copy: the value as it was then, if the program had changed arguments: one of them may be the value.
    """

    __slots__ = ("copy", "error", "operation", "value")

    def __init__(self, operation: str, value: Any, error: Exception | None, copy: Any) -> None:
        self.operation, self.value, self.error, self.copy = operation, value, error, copy


class ReplayMismatch(BaseException):
    """Raised if an expression, evaluated again, requests other operations than the first time."""


class JudgeSide(Peer):
    """Sends requests to the program's process, and meanwhile serves its calls of the tests' own functions.

    Args:
        report: a function that records failures which a test could hide by catching their exception.
    """

    trusts_operators = False

    def __init__(self, receiving: int, sending: int, report: Callable[[str], None]) -> None:
        super().__init__(receiving, sending, parity=0)
        self._report = report
        self.is_broken = False
        self.callback_depth = 0
        self.files: OwnFiles | None = None
        self.settings: Settings | None = None
        self.class_names: Collection[str] = ()  # names that the tests use for classes
        self.log: list[Reply] | None = None  # the program's answers, while a check is evaluated
        self._replay: Iterator[Reply] | None = None
        self._replays_copies = False
        self._originals = {place: _current(place) for place in _REPLACEABLE}
        self._replaced = dict(self._originals)
        self.raised_by_program: list[BaseException] = []
        self.changed: dict[int, tuple[Any, str, list[Any]]] = {}  # arguments, and the test's items in them

    def send_program(self, program: str) -> None:
        """Sends the program to its process, which executes it."""
        try:
            self.send_request("load", [program], {})
        except wire.Broken:
            self.is_broken = True

    def wait_for_program(self) -> None:
        """Waits until the program has been executed; raises its exception if it raised one."""
        try:
            if self.is_broken:
                raise wire.Broken("the program has ended")
            self.wait("load")
        except wire.Broken:
            self.is_broken = True
            raise

    def find_global(self, name: str) -> tuple[bool, Any]:
        """Returns whether the program has a global of that name, and the global."""
        found, value = self.request("name", name)
        return bool(found), mirror.named(name, value, is_class=name in self.class_names)

    def defines(self, name: str, module: str) -> bool:
        """Returns whether the program's global of that name is another object than the one of a library's module."""
        return bool(self.request("defines", name, module))

    def request(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
        """Requests an operation from the program. Once the connection is broken, every request raises `Broken`."""
        if self._replay is not None and operation not in _LOOKUPS:
            return self._replay_answer(operation)
        if self.is_broken:
            raise wire.Broken("the program has ended")
        log, self.log = self.log, None  # requests by the tests' functions during this request are not logged
        try:
            files = self.files if self.files is not None and self.files.has_any else None
            with contextlib.nullcontext() if files is None else files.hide((arguments, keywords)):
                self._pass_replacements()
                value = super().request(operation, *arguments, **keywords)
            if log is not None and operation not in _LOOKUPS:
                log.append(Reply(operation, value, None, shared.plain_copy(value) if self.changed else value))
            return value
        except wire.Broken:
            self.is_broken = True
            raise
        except wire.Unsendable as error:
            raise self.handle_unsendable(str(error)) from None
        except Exception as error:
            if log is not None:
                log.append(Reply(operation, None, error, None))
            raise
        finally:
            self.log = log

    def _pass_replacements(self) -> None:
        for place, before in self._replaced.items():
            if (now := _current(place)) is not before:
                self._replaced[place] = now
                super().request("replace", *place, None if now is self._originals[place] else now)
        for change in self.settings.take() if self.settings is not None else ():
            super().request("set", *change)

    @contextlib.contextmanager
    def replay(self, log: list[Reply], uses_copies: bool) -> Iterator[None]:
        """Answers requests from a log instead of the program, inside this context."""
        self._replay = iter(log)
        self._replays_copies = uses_copies
        try:
            yield
        finally:
            self._replay = None

    def _replay_answer(self, operation: str) -> Any:
        reply = next(self._replay or iter(()), None)
        if reply is None or reply.operation != operation:
            raise ReplayMismatch
        if reply.error is not None:
            raise reply.error
        return reply.copy if self._replays_copies else reply.value

    def convert_error(self, error: BaseException) -> BaseException:
        """Returns the exception to raise for one of the program's; one that would silently end a loop is replaced."""
        if errors.stops_iteration(error):
            error = errors.ProgramStopped(f"the program raised {type(error).__name__}")
        if isinstance(error, SystemExit):
            self.raised_by_program.append(error)
        return error

    def handle_unsendable(self, text: str) -> BaseException:
        """Reports a value that cannot be passed, and returns an exception; a test may take it for the program's own."""
        self._report(f"a value could not be passed between the test and the program: {text}")
        return TypeError(text)

    def on_change(self, container: Any, tag: str, items: list[Any]) -> None:
        """Keeps the items, or attributes, that an argument had before the program changed it."""
        self.changed.setdefault(id(container), (container, tag, items))

    # ------------------------------------------------------------------ what the program may do with the tests' objects

    def perform(self, operation: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Carries out an operation on an object that the tests have passed to the program."""
        target, *rest = arguments or [None]
        if operation in ("getattr", "setattr", "delattr") and rest and isinstance(rest[0], str):
            rest[0] = str.__str__(rest[0])  # a class derived from str has methods of the program, even `startswith`
            arguments = [target, *rest]
        if id(target) not in self._numbers or not is_allowed(operation, target, rest):
            raise AttributeError(f"a program cannot do this with a {type(target).__name__} of the tests")
        if operation in ("setattr", "delattr"):
            self.on_change(target, "object", shared.items_of(target, "object"))
        elif operation == "getattr" and rest[0] == "__dict__":
            return dict(vars(target))  # a copy: in the dictionary itself, the program could replace methods
        self.callback_depth += 1
        try:
            return super().perform(operation, arguments, keywords)
        finally:
            self.callback_depth -= 1

    # ------------------------------------------------------------------ functions and modules

    def is_library_type(self, kind: type) -> bool:
        """Returns whether a type is passed by its name, since the program has the same libraries."""
        return is_importable(kind) and has_real_name(kind)

    def encode_callable(self, value: Any) -> list[Any] | None:
        """Encodes library functions by name, and a test's function with its parameters, which decorators inspect."""
        owner = getattr(value, "__objclass__", None)
        if owner is not None and owner.__module__ == "builtins" and hasattr(value, "__name__"):
            return ["library", "builtins", f"{owner.__name__}.{value.__name__}"]
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
            if isinstance(value.__module__, str) and is_importable(value) and has_real_name(value):
                return ["library", value.__module__, value.__qualname__]
            if isinstance(value, types.FunctionType):
                return self._encode_function(value)
        return None

    def _encode_function(self, function: types.FunctionType) -> list[Any]:
        import inspect  # slow to import, and few tests pass functions

        declared: list[str] = []
        passed: list[str] = []
        defaults: list[Any] = []
        kinds = inspect.Parameter
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
        for place, parameter in enumerate(parameters):
            name = parameter.name
            star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
            before = parameters[place - 1].kind if place else None
            if parameter.kind is kinds.KEYWORD_ONLY and before not in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL):
                declared.append("*")
            if before is kinds.POSITIONAL_ONLY and parameter.kind is not kinds.POSITIONAL_ONLY:
                declared.append("/")
            default = ""
            if parameter.default is not kinds.empty:
                default = f"=defaults[{len(defaults)}]"
                defaults.append(self.encode(parameter.default))
            declared.append(f"{star}{name}{default}")
            passed.append(f"{name}={name}" if parameter.kind is kinds.KEYWORD_ONLY else f"{star}{name}")
        if parameters and parameters[-1].kind is kinds.POSITIONAL_ONLY:
            declared.append("/")
        number = self.export(function)
        return [
            "function",
            number,
            function.__name__,
            function.__doc__,
            ", ".join(declared),
            ", ".join(passed),
            defaults,
        ]

    def module(self, name: str) -> Any:
        """Returns a module that the program has imported."""
        if name not in SHARED_MODULES:
            raise wire.Unsendable(f"the program's module {name}")
        return importlib.import_module(name)


def _current(place: tuple[str, str]) -> Any:
    module, name = place
    return getattr(sys.modules[module], name)


class OriginalItems:
    """A context in which containers have the items from before the program changed them."""

    def __init__(self, changed: list[tuple[Any, str, list[Any]]]) -> None:
        self._changed = changed
        self._now: list[list[Any]] = []

    def __enter__(self) -> None:
        self._now = [shared.items_of(container, tag) for container, tag, _ in self._changed]
        for container, tag, items in self._changed:
            shared.refill(container, tag, items)

    def __exit__(self, *_: object) -> None:
        for (container, tag, _items), now in zip(self._changed, self._now, strict=True):
            shared.refill(container, tag, now)


def solution_module(judge_side: JudgeSide) -> types.ModuleType:
    """Returns the module from which tests may import the program's names."""

    class Solution(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            found, value = judge_side.find_global(name)
            if not found:
                raise AttributeError(f"the program has no {name}")
            return value

    sys.modules["solution"] = module = Solution("solution")
    return module
