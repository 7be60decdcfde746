"""Mirrors of the other process's classes and objects.

A class of the other side is mirrored by a class with the same name, bases and special methods, whose methods send
requests to the other side. So `isinstance`, `issubclass`, `callable`, `len` or `with` work as in one process.

A mirror has no array or buffer protocol for numpy to find: only the special attributes in `special.READABLE` can be
read, and only as plain data.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Iterator

from megatron_sspo.sandbox.inside.proxies.special import (
    ASYNC,
    BINARY,
    COMBINING,
    FORWARDED_BY_DERIVED,
    INPLACE,
    OTHER,
    READABLE,
    REFLECTED,
    SPECIAL,
    UNARY,
    is_special,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any, Protocol

    class Requester(Protocol):
        """The connection that a mirrored object belongs to."""

        trusts_operators: bool  # whether the other side's operators may see plain data of this side

        def request(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
            """Requests an operation from the other side."""
            ...


# Types of the interpreter, by name. A mirror reports them as its `__class__`, so that `inspect` and `isinstance` work.
_INTERPRETER = {
    kind.__name__: kind
    for kind in (
        *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.GeneratorType, types.CoroutineType),
        *(types.AsyncGeneratorType, types.MappingProxyType, map, zip, filter, enumerate, reversed, memoryview),
    )
}


class Handle:
    """The number of an object of the other side.

    Attributes:
        is_direct: for an object, whether a test has it from a call of its class; for a class, whether a test uses it as
            a class.
        twin: for an object that is direct, the same object where the program returns it, and the other way round.
    """

    __slots__ = ("is_direct", "number", "peer", "twin")

    def __init__(self, peer: Requester, number: int) -> None:
        self.peer = peer
        self.number = number
        self.is_direct = False
        self.twin: Any = None


FIELD = "<handle>"
_CLASSES: dict[type, Handle] = {}


def handle_of(value: Any) -> Handle | None:
    """Returns the handle of a mirrored object or class; None for all others."""
    if isinstance(type(value), Mirror):
        return object.__getattribute__(value, "__dict__").get(FIELD)
    return _CLASSES.get(value) if type(value) is Mirror else None


def attach(value: Any, peer: Requester, number: int) -> Any:
    """Gives an object its handle, and returns the object."""
    object.__getattribute__(value, "__dict__")[FIELD] = Handle(peer, number)
    return value


def direct(value: Any) -> Any:
    """Returns an object as a test has it that called its class: its operators may see plain data.

    If the program returns the same object from a function, as `self` in a method, it must not decide the check there.
    So the test then has a twin that is not direct. An object derived from plain data, which has its own items, cannot
    have one: it is direct until the program returns it.
    """
    handle = handle_of(value)
    if handle is None or handle.is_direct or handle.peer.trusts_operators:
        return value
    if not isinstance(value, Proxy):
        handle.is_direct = True
        return value
    if handle.twin is None:
        handle.twin = attach(object.__new__(type(value)), handle.peer, handle.number)
        twin = handle_of(handle.twin)
        assert twin is not None
        twin.is_direct, twin.twin = True, value
    return handle.twin


def returned(value: Any) -> Any:
    """Returns an object as a test has it that got it from the program by other means than a call of its class."""
    handle = handle_of(value)
    if handle is None or not handle.is_direct or isinstance(value, type):
        return value
    if handle.twin is not None:
        return handle.twin
    handle.is_direct = False
    return value


def identity(value: Any) -> int:
    """Returns what `id` returns; it is the same for both twins of an object."""
    handle = handle_of(value)
    return id(value if handle is None or not handle.is_direct or handle.twin is None else handle.twin)


def _is_same(first: Handle | None, second: Handle | None) -> bool:
    return first is not None and second is not None and (first.peer, first.number) == (second.peer, second.number)


def _request(value: Any, operation: str, *arguments: Any, **keywords: Any) -> Any:
    handle = handle_of(value)
    if handle is None:
        raise TypeError(f"the object of type {type(value).__name__} was not made by the program")
    return handle.peer.request(operation, value, *arguments, **keywords)


def _read(value: Any, name: str) -> Any:
    """Reads an attribute; only a few special attributes can be read, and only as plain data."""
    if not is_special(name):
        return named(name, _request(value, "getattr", name))
    kinds = READABLE.get(name)
    found = _request(value, "getattr", name) if kinds else None
    if not isinstance(found, (*(kinds or ()), *((type(None),) if name == "__doc__" else ()))):
        raise AttributeError(f"the special attribute {name} cannot be read")
    return found


def named(name: str, value: Any, *, is_class: bool = False) -> Any:
    """Returns a value that a test has read by a name; a capitalized name is one that the test uses for a class.

    A test that calls a function, as in `abs(f(1) - 2.0) < 1e-6`, would otherwise combine its expected value with an
    object of a class `f`.
    """
    if type(value) is Mirror and (is_class or name.lstrip("_")[:1].isupper()):
        _CLASSES[value].is_direct = True
    return value


class Mirror(type):
    """The type of all mirrored classes."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any) -> Any:
        mirrored = [base for base in bases if base in _CLASSES]
        if not mirrored:
            return super().__new__(cls, name, bases, namespace)
        return _subclass(name, bases, namespace, keywords, _CLASSES[mirrored[0]].peer)  # a class that this side derives

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any) -> None:
        pass

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        made = _request(cls, "call", *arguments, **keywords)
        return direct(made) if _CLASSES[cls].is_direct and isinstance(made, cls) else made

    def __getattr__(cls, name: str) -> Any:
        return _read(cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        _request(cls, "setattr", name, value)

    def __delattr__(cls, name: str) -> None:
        _request(cls, "delattr", name)

    def __iter__(cls) -> Iterator[Any]:
        return iter(_request(cls, "iter"))

    def __len__(cls) -> int:
        return _request(cls, "len")

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return _request(cls, "getitem", key)

    def __contains__(cls, value: Any) -> bool:
        handle = _CLASSES.get(cls)
        if handle and not (handle.peer.trusts_operators or handle.is_direct or handle_of(value)):
            raise TypeError("a test cannot look for plain data in a class that the program returned")
        return bool(_request(cls, "contains", value))

    def __dir__(cls) -> list[str]:
        return _request(cls, "dir")

    def __instancecheck__(cls, value: Any) -> bool:
        # a protocol or an abstract class of the program decides for the program's objects, but not for plain data
        if super().__instancecheck__(value):
            return True
        handle = _CLASSES.get(cls)
        is_asked = handle is not None and not handle.peer.trusts_operators and handle_of(value) is not None
        return bool(is_asked and handle and handle.peer.request("isinstance", value, cls) is True)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__qualname__}'>"


def _read_of_class(name: str) -> Any:
    """Returns a property for a special attribute that Python would otherwise find on the mirrored class itself."""
    return property(lambda cls: _read(cls, name) if cls in _CLASSES else vars(type)[name].__get__(cls))


for _name in ("__doc__", "__annotations__"):
    setattr(Mirror, _name, _read_of_class(_name))


class _Member:
    """An attribute of a mirrored class."""

    def __init__(self, owner: Callable[[], type], name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, value: Any, kind: type) -> Any:
        if value is None:
            return _read(kind, self._name)
        if isinstance(value, Proxy):  # reached by `super()` only: a proxy reads its own attributes itself
            return _request(self._owner(), "member", self._name, value)
        return _request(value, "getattr", self._name)


class Proxy(metaclass=Mirror):
    """An object of the other side that is not plain data.

    In the judge, comparing it with plain data gives False, and combining it with plain data raises an error. Otherwise
    the program's own operators would see the expected value and decide the check. An object that the test made itself,
    by calling the program's class, may be combined.
    """

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return object.__getattribute__(self, "__class__")
        if name in ("__dict__", "__doc__", "__module__"):
            return _read(self, name)
        if is_special(name):
            return object.__getattribute__(self, name)
        return _read(self, name)

    def __getattr__(self, name: str) -> Any:
        return _read(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _request(self, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        _request(self, "delattr", name)

    def __dir__(self) -> list[str]:
        return _request(self, "dir")

    def __eq__(self, other: object) -> bool:
        handle = handle_of(self)
        if self is other or handle is None or _is_same(handle, handle_of(other)):
            return handle is not None or self is other
        if not handle.peer.trusts_operators and not isinstance(other, Proxy):
            return False
        return _request(self, "eq", other) is True

    def __hash__(self) -> int:
        handle = handle_of(self)
        return handle.number if handle else 0

    def __copy__(self) -> Any:
        return _request(self, "copy")

    def __deepcopy__(self, memo: Any) -> Any:
        return _request(self, "deepcopy")

    def __str__(self) -> str:
        return _request(self, "str")

    def __repr__(self) -> str:
        return _request(self, "repr")

    def __format__(self, form: str) -> str:
        return _request(self, "format", form)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an object of the program cannot be pickled by a test")


class Derived:
    """An object whose class on the other side is derived from plain data, such as a named tuple."""

    def __getattr__(self, name: str) -> Any:
        return _read(self, name)

    def __deepcopy__(self, memo: Any) -> Any:
        return _request(self, "deepcopy")

    def __copy__(self) -> Any:
        return _request(self, "copy")


def make_class(
    peer: Requester,
    number: int,
    name: str,
    bases: list[type],
    special: list[str],
    members: list[str],
    base: type | None,
) -> type:
    """Makes the mirror of a class.

    Args:
        bases: mirrors of those bases of the original that are classes of the other side.
        special: the special methods that the original or its bases define.
        members: the other attributes that the original itself defines. Special names are left out, since a program that
            forges its messages would define its own `__eq__` with them.
        base: the plain-data type or builtin exception that the original is derived from, or None.
    """
    made: list[type] = []
    namespace: dict[str, Any] = {
        name: _Member(lambda: made[0], name) for name in members if name == "__init__" or not name.startswith("__")
    }
    is_data = base is not None
    for method in special:
        if method in SPECIAL and (not is_data or method in FORWARDED_BY_DERIVED) and method != "__eq__":
            namespace[method] = _method(method)
    for method in set(special) & COMBINING.keys() if base is not None else ():
        namespace[method] = _binary(COMBINING[method], method in REFLECTED, getattr(base, method, None))
    if "__hash__" not in special and "__eq__" in special and not is_data:
        namespace["__hash__"] = None
    if name in _INTERPRETER:
        namespace["__class__"] = property(lambda self: _INTERPRETER[name])
    root = (Derived, base) if base is not None else (_ROOTS.get(name, Proxy),)
    if base is not None and issubclass(base, (list, dict, set, tuple)):
        namespace.pop("__getitem__" if not issubclass(base, dict) else "", None)
    if base is not None and issubclass(base, Counter):  # its operators and `==` are Python code, which looks up items
        namespace = {key: part for key, part in namespace.items() if key not in ("__getitem__", "__missing__")}
    for choice in ((*bases, *(kind for kind in root if not any(issubclass(b, kind) for b in bases))), root):
        try:
            kind = type.__new__(Mirror, name, choice, {"__module__": "solution", **namespace})
            break
        except TypeError:  # these bases cannot be combined
            continue
    else:
        raise ValueError(f"the class {name} cannot be mirrored")
    made.append(kind)
    _CLASSES[kind] = Handle(peer, number)
    return kind


def _method(name: str) -> Any:
    if name in UNARY:
        return _unary(UNARY[name], {"__bool__": bool, "__len__": int}.get(name))
    if name in BINARY or name in INPLACE:
        return _binary((BINARY | INPLACE)[name])
    if name in REFLECTED:
        return _binary(REFLECTED[name], reflected=True)
    if name in ASYNC:
        return _ASYNC[name]
    operation = OTHER[name]

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return _request(self, operation, *arguments, **keywords)

    return method


def _entered(manager: Any, found: Any) -> Any:
    """Returns what a context manager has returned; a manager that returns itself is as direct as it was."""
    return manager if _is_same(handle_of(manager), handle_of(found)) else found


def _unary(operation: str, kind: type | None) -> Any:
    def method(self: Any) -> Any:
        found = _request(self, operation)
        if operation == "enter":
            return _entered(self, found)
        return kind(found) if kind and type(found) is kind else found

    return method


def _binary(operation: str, reflected: bool = False, plain: Callable[[Any, Any], Any] | None = None) -> Any:
    """Returns an operator; `plain`, that of plain data, is used for an object derived from it and other plain data."""

    def method(self: Any, other: Any) -> Any:
        handle = handle_of(self)
        if handle and not (handle.peer.trusts_operators or handle.is_direct or handle_of(other)):
            # The program's own operator would see the expected value and decide the check.
            if plain is not None:
                return plain(self, other)
            raise TypeError("a test cannot combine an object of the program with plain data: convert it first")
        if handle is None:
            return NotImplemented
        found = handle.peer.request(operation, *((other, self) if reflected else (self, other)))
        return direct(found) if handle.is_direct and type(found) is type(self) else found

    return method


def _await(self: Any) -> Any:
    return _request(self, "await")
    yield  # never reached: makes this a generator, as `await` needs it


async def _enter(self: Any) -> Any:
    return _entered(self, _request(self, "aenter"))


async def _exit(self: Any, *error: Any) -> Any:
    return _request(self, "aexit", *error)


async def _next(self: Any) -> Any:
    return _request(self, "anext")


_ASYNC = {"__await__": _await, "__aenter__": _enter, "__aexit__": _exit, "__anext__": _next}


class Generator(Proxy):
    """A generator of the other side. Only its own methods may raise StopIteration."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("send", "throw", "close"):
            return lambda *arguments: _request(self, name, *arguments)
        return Proxy.__getattribute__(self, name)


class Coroutine(Proxy):
    """A coroutine of the other side; the first `send` runs it to its end there."""

    def __await__(self) -> Any:
        return _request(self, "await")
        yield  # never reached: makes this a generator, as `await` needs it

    def __getattribute__(self, name: str) -> Any:
        if name in ("send", "throw", "close"):
            return object.__getattribute__(self, name)
        return Proxy.__getattribute__(self, name)

    def send(self, value: Any) -> Any:
        """Runs the coroutine; raises StopIteration with its result."""
        raise StopIteration(_request(self, "await"))

    def throw(self, *error: Any) -> Any:
        """Raises the error, as a coroutine that has not been started does."""
        raise error[0]

    def close(self) -> None:
        """Does nothing, since the coroutine is on the other side."""


_ROOTS = {"generator": Generator, "coroutine": Coroutine}


def _subclass(name: str, bases: tuple[type, ...], namespace: dict[str, Any], keywords: Any, peer: Requester) -> type:
    """Requests a class of the other side that is derived from its own, with functions of this side as methods."""
    cell = namespace.pop("__classcell__", None)
    content = {key: value for key, value in namespace.items() if key not in ("__module__", "__qualname__", "__doc__")}
    functions = {key: value for key, value in content.items() if isinstance(value, types.FunctionType)}
    rest = {key: value for key, value in content.items() if key not in functions}
    made = peer.request("subclass", name, list(bases), functions, rest, keywords)
    if made in _CLASSES:
        _CLASSES[made].is_direct = True
    if cell is not None:
        cell.cell_contents = made
    return made


def base_of(kind: type) -> type:
    """Returns the plain-data type that a mirrored class is derived from."""
    return next(part for part in kind.__mro__ if type(part) is type and part is not object and part is not Derived)
