"""Descriptions of classes for the other process."""

from __future__ import annotations

import sys

from megatron_sspo.sandbox.inside.proxies import errors
from megatron_sspo.sandbox.inside.proxies.special import SPECIAL

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

# Types of plain data, besides containers, that classes may be derived from.
DATA: tuple[type, ...] = (int, float, complex, str, bytes, tuple, frozenset)
CONTAINERS = ("list", "dict", "set", "bytearray", "deque", "OrderedDict", "defaultdict", "Counter")


def describe(kind: type) -> tuple[list[type], type | None, list[str], list[str]]:
    """Returns a class's bases that are not importable, its plain-data base, special methods and other attributes."""
    is_own = not is_importable(kind)
    bases = [base for base in kind.__bases__ if not is_importable(base)]
    base = data_base_of(kind)
    defining = [part for part in kind.__mro__[:-1] if not (is_own and base and is_importable(part))]
    special = sorted(
        name for name in SPECIAL if next((vars(p)[name] for p in defining if name in vars(p)), None) is not None
    )
    members = [name for name in vars(kind) if not name.startswith("__")] if is_own else []
    if is_own and "__init__" in vars(kind):
        members.append("__init__")
    return bases, base, special, members


def is_importable(kind: Any) -> bool:
    """Returns whether a class or function is found by its module and name, and is not the program's or the tests'."""
    module = sys.modules.get(getattr(kind, "__module__", None) or "")
    if module is None or module.__name__ in ("solution", "tests", "__main__"):
        return False
    return has_real_name(kind) or kind.__module__ == "builtins"


def has_real_name(value: Any) -> bool:
    """Returns whether a class or function is found by its module and its name."""
    return getattr(sys.modules.get(value.__module__), value.__qualname__, None) is value


def data_base_of(kind: type) -> type | None:
    """Returns the plain-data type or builtin exception that a class is derived from, or None."""
    if issubclass(kind, BaseException):
        return errors.builtin_base(kind)
    for part in kind.__mro__:
        if part in DATA or (part.__name__ in CONTAINERS and part.__module__ in ("builtins", "collections")):
            return part
    return None
