"""Exceptions of the other process."""

from __future__ import annotations

import builtins
import contextlib
import sys

from megatron_sspo.sandbox.inside.proxies import mirror
from megatron_sspo.sandbox.inside.proxies.special import is_special

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_BUILTIN_FIELDS = ("filename", "filename2", "name", "path")  # of OSError, ImportError and others; not in `args`


class ProgramStopped(RuntimeError):
    """Replaces a StopIteration that the program raised outside of an iteration: a loop in a test would swallow it."""


def library_error(module: str, name: str) -> type[BaseException] | None:
    """Returns an exception of the standard library or numpy if its module is imported in this process, else None."""
    top = module.partition(".")[0]
    if (top not in sys.stdlib_module_names and top != "numpy") or top in ("builtins", "unittest", "doctest"):
        return None
    found = getattr(sys.modules.get(module), name, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        return None
    return None if found.__module__.startswith("unittest") else found  # SkipTest, which numpy.testing has too


def builtin_base(kind: type) -> type[BaseException]:
    """Returns the nearest builtin exception that a class is derived from."""
    for base in kind.__mro__:
        if getattr(builtins, base.__name__, None) is base and issubclass(base, BaseException):
            return base
    return Exception


def make_error(kind: type[BaseException], arguments: tuple[Any, ...], fields: dict[str, Any]) -> BaseException:
    """Makes an exception with the arguments and attributes of the other side's, without calling its `__init__`."""
    base = builtin_base(kind)
    try:
        error = kind.__new__(kind, *arguments)
    except TypeError:
        error = kind.__new__(kind)
    with contextlib.suppress(Exception):  # the builtin base may take other arguments
        base.__init__(error, *arguments)
    error.args = arguments
    set_fields(error, fields)
    return error


def set_fields(error: BaseException, fields: dict[str, Any]) -> None:
    """Sets attributes of an exception, except special ones: numpy or `copy` would act on those of a forged message."""
    for name, value in fields.items():
        if is_special(name) and name != "__notes__":
            continue
        if name in _BUILTIN_FIELDS and hasattr(type(error), name):
            with contextlib.suppress(TypeError, AttributeError):
                setattr(error, name, value)
        else:
            vars(error)[str(name)] = value


def fields_of(error: BaseException) -> dict[str, Any]:
    """Returns the attributes that were set on an exception."""
    builtin = {name: getattr(error, name, None) for name in _BUILTIN_FIELDS if hasattr(builtin_base(type(error)), name)}
    found = {name: value for name, value in builtin.items() if isinstance(value, (str, bytes, int))}
    return {**found, **{name: value for name, value in vars(error).items() if name != mirror.FIELD}}


def stops_iteration(error: BaseException) -> bool:
    """Returns whether an exception would silently end a loop."""
    return isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit))
