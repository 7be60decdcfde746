"""Checks a tree of frozen dataclasses by its annotations with pydantic; an error is one sentence."""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from megatron_sspo.config.kinds import LARGEST, NOT_JSON
from megatron_sspo.config.naming import describe_value
from megatron_sspo.errors import UserError

T = TypeVar("T")

_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
    types.NoneType: "None",
    Callable: "a function",
    typing.Callable: "a function",
}


def validate(config: T, kind: type[T]) -> T:
    """Checks every value of a dataclass of type `kind` by its field's annotation, and returns a copy.

    The copy has plain values: for example, a float field has a float if 1 or a NumPy number was given, and a path is a
    string.

    Raises:
        UserError: a value is wrong; the message names the field, the value, and what it must be.
    """
    try:
        found = _adapter(kind).validate_python((config,))[0]
        _check_no_field_is_lost(config, found, [])
        return found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    except RecursionError:
        raise UserError("the recipe's Run contains itself: build each part of it anew") from None
    raise UserError(_error_message(first, config, kind))


def describe_hint(hint: Any) -> str:
    """Describes the values of an annotation for a message: "a whole number of 1 or more"."""
    origin: Any = typing.get_origin(hint)
    arguments: list[Any] = list(typing.get_args(hint))
    if origin is typing.Annotated:
        texts = [part.description for part in arguments[1:] if isinstance(part, FieldInfo) and part.description]
        return texts[-1] if texts else describe_hint(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe_hint(argument) for argument in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}" if len(arguments) > 1 else repr(arguments[0])
    if origin is tuple and arguments[-1] is not ...:
        return f"a tuple of {len(arguments)}, ({', '.join(map(describe_hint, arguments))})"
    if origin is tuple:
        return f"a tuple, each item {describe_hint(arguments[0])}"
    if origin is Callable:
        return "a function"
    if origin is not None and issubclass(origin, Mapping):
        return f"a dict, each value {describe_hint(arguments[1])}"
    if origin is not None and issubclass(origin, Sequence):
        return f"a list, each item {describe_hint(arguments[0])}"
    if dataclasses.is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}, written as {name}(...)"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"one of {', '.join(map(repr, hint.__members__))}"
    return _WORDS.get(hint) or f"an object of the class {getattr(hint, '__name__', hint)}"


def join_path(place: Sequence[Any]) -> str:
    """Joins the parts of a path for a message: evaluation.sets.gsm8k.prompts.without[0]."""
    text = ""
    for part in place:
        if isinstance(part, int) or str(part).startswith("["):
            text += f"[{part}]" if isinstance(part, int) else str(part)
        else:
            text += f".{part}" if text else str(part)
    return text


def _check_no_field_is_lost(given: Any, found: Any, place: list[Any]) -> None:
    """Checks that no part is of a subclass with further fields, which the copy would lack."""
    if given is found:
        return
    if dataclasses.is_dataclass(found):
        names = [field.name for field in dataclasses.fields(found)]
        if others := [field.name for field in dataclasses.fields(given) if field.name not in names]:
            raise UserError(
                f"{join_path(place) or 'the run'} is of the class {type(given).__name__} with the field {others[0]}, "
                f"which nothing reads, because {type(found).__name__} has no such field: leave it out"
            )
        for name in names:
            _check_no_field_is_lost(getattr(given, name), getattr(found, name), [*place, name])
    elif isinstance(found, (Mapping, tuple)):
        for key in found if isinstance(found, Mapping) else range(len(found)):
            _check_no_field_is_lost(given[key], found[key], [*place, key])


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    # In a tuple, because an adapter's config applies to dataclasses inside its type, but not to a dataclass itself.
    return TypeAdapter(
        tuple[kind],  # pyright: ignore
        config=ConfigDict(strict=True, revalidate_instances="always", arbitrary_types_allowed=True),
    )


def _error_message(error: Any, config: Any, kind: type) -> str:
    place, context = list(error["loc"][1:]), error.get("ctx", {})
    if place and place[-1] == "[key]":
        keys = typing.get_args(_strip_annotated(_hint(kind, place[:-2])))[0]
        key = describe_value(error["input"])
        return f"{join_path(place[:-2])} has the key {key}: a key must be {describe_hint(keys)}"
    value = config  # not the error's input, which some releases of pydantic have already converted
    for part in place:
        value = value[part] if isinstance(value, (Mapping, tuple, list)) else getattr(value, part)
    if error["type"] == NOT_JSON:
        return f"{join_path([*place, *context['place']])} is {context['value']}: it must be {context['what']}"
    kind_of_value = describe_hint(_hint(kind, place))
    what = context.get("what") or kind_of_value
    hint = _call_hint(value) if what == kind_of_value else ""
    if context.get("le") == LARGEST:
        what += f", and at most {LARGEST}"
    if not place:
        return f"a recipe returned {describe_value(value)}: it must be {what}"
    return f"{join_path(place)} is {describe_value(value)}{hint}: it must be {what}"


def _call_hint(value: Any) -> str:
    """Returns a hint for a function or class in place of a value: most often its parentheses are missing."""
    return ", not called" if isinstance(value, (type, types.FunctionType)) and value.__name__ != "<lambda>" else ""


def _hint(kind: Any, place: Sequence[Any]) -> Any:
    """Returns the annotation of the value at a place of the tree."""
    hint = kind
    for part in place:
        hint = _strip_none(_strip_annotated(hint))
        if dataclasses.is_dataclass(hint):
            hint = typing.get_type_hints(hint, include_extras=True)[part]
        else:  # a mapping's values, a tuple's items
            arguments = typing.get_args(hint)
            hint = arguments[1] if issubclass(typing.get_origin(hint) or object, Mapping) else arguments[0]
    return hint


def _strip_annotated(hint: Any) -> Any:
    return _strip_annotated(typing.get_args(hint)[0]) if typing.get_origin(hint) is typing.Annotated else hint


def _strip_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _strip_annotated(next(argument for argument in typing.get_args(hint) if argument is not types.NoneType))
    return hint
