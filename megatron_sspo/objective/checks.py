"""Checks the parameters of gates, objectives, penalties and corrections, in plain Python."""

import inspect
import sys
from collections.abc import Callable


def check_number(owner: object, name: str, fits: Callable[[float], bool], what: str) -> None:
    """Checks that one field of a dataclass, `owner.name`, is a finite number that `fits`.

    Raises ValueError if it is not; the message has the range in words, `what`, after "and must be".
    """
    value = getattr(owner, name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and abs(value) <= sys.float_info.max and fits(value)):
        raise ValueError(f"{type(owner).__name__}.{name} is {describe_value(value)}, and must be {what}")


def check_gate(owner: object, name: str) -> None:
    """Checks that a field of a dataclass is a gate. Raises ValueError if it lacks one of the methods, or is a class."""
    gate = getattr(owner, name)
    methods = [getattr(gate, method, None) for method in ("log_gate", "weight")]
    if isinstance(gate, type) or not all(map(callable, methods)):
        raise ValueError(
            f"{type(owner).__name__}.{name} is {describe_value(gate)}, and must be a gate, such as AtanLog() or "
            "SigLog(0.6, 0.5)"
        )


def check_name(owner: object, name: str, names: tuple[str, ...]) -> None:
    """Checks that the value of one field of a dataclass is one of `names`. Raises ValueError if it is another one."""
    value = getattr(owner, name)
    if not isinstance(value, str) or value not in names:
        raise ValueError(
            f"{type(owner).__name__}.{name} is {describe_value(value)}, and must be one of {', '.join(names)}"
        )


def takes(value: object, *arguments: str, **inputs: object) -> bool:
    """Returns whether a value is a function or an object, not a class, that can be called with such arguments."""
    try:
        inspect.signature(value).bind(*arguments, **inputs)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return False
    return not isinstance(value, type)


def describe_value(value: object) -> str:
    """Returns a value's text for a message: a class or function by name."""
    name = getattr(value, "__qualname__", None)
    if name is None:
        try:
            return " ".join(repr(value).split())[:200]
        except Exception:  # a class whose __repr__ fails, or an integer of thousands of digits
            return f"a {type(value).__name__}"
    return f"the {'class' if isinstance(value, type) else 'function'} {name}"
