"""`--set objective.token_gate.tau_pos=0.5`: rebuilds the frozen configuration with one value changed."""

import ast
import contextlib
import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from megatron_sspo import objective
from megatron_sspo.config.expression import read_objective
from megatron_sspo.config.naming import one_line, shorten, without_address
from megatron_sspo.config.validate import HintMismatch, convert_to_hint
from megatron_sspo.errors import UserError

T = TypeVar("T")


def override(config: T, assignments: Sequence[str]) -> T:
    """Applies `path=value` assignments to a tree of frozen dataclasses, from left to right.

    A value is JSON or a Python literal; what is neither is a string. `run.check` compares values with their types. For
    a field of the objective, the value is an expression such as `grpo(eps_high=0.28)` or `sspo(SigLog(0.6, 0.5))`, or
    the place of an object of your own, `package.module:attribute` or `file.py:attribute`. Raises UserError if a field
    is unknown (the message names the valid ones), or an expression cannot be parsed.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {shorten(assignment)!r} has no '=': write it as field.field=value")
        # a value of white space alone is not an empty one: a line break is a stop string
        config = _replace(config, path.strip().split("."), text.strip() or text, path.strip())
    return config


def config_to_json(value: Any) -> Any:
    """Returns the configuration as JSON values, with classes and functions by name.

    The addresses of objects in memory are left out, because they differ between processes.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: config_to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): config_to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [config_to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((config_to_json(item) for item in value), key=str)  # their order differs between processes
    if callable(value):
        return getattr(value, "__qualname__", None) or without_address(repr(value))
    return value if isinstance(value, (str, int, float, bool, type(None))) else without_address(str(value))


def _replace(config: Any, path: list[str], text: str, full_path: str) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(config, Mapping):
        key = next((key for key in config if str(key) == name), name)  # a key may be a number
        if any(map(dataclasses.is_dataclass, config.values())) and key not in config:
            raise UserError(f"there is no {shorten(full_path)!r}: {_suggest(name, list(map(str, config)))}")
        value = _replace(config.get(key, {}), rest, text, full_path) if rest else _literal(text)
        return {**config, key: value}
    is_group = dataclasses.is_dataclass(config) and not isinstance(config, type)
    fields = [f.name for f in dataclasses.fields(config)] if is_group else []
    if name not in fields:
        before = full_path.removesuffix("." + ".".join(path))
        missing = f"{before} is None, so the recipe must set its other fields first"
        remedy = missing if config is None else _suggest(name, fields)
        raise UserError(f"there is no field {shorten(full_path)!r}: {remedy}")
    current, hint = getattr(config, name), _hint(type(config), name)
    if rest and current is None:
        current = _with_defaults(hint)
    value = _replace(current, rest, text, full_path) if rest else _parse(text, hint, current, full_path)
    replace: Any = dataclasses.replace
    try:
        return replace(config, **{name: value})
    except (ValueError, TypeError) as error:
        raise UserError(f"{full_path}={shorten(text)} is not valid: {one_line(str(error))}") from error


def _hint(kind: type, name: str) -> Any:
    """Returns the annotation of a field; Any if it uses names that only a type checker imports."""
    try:
        return typing.get_type_hints(kind)[name]
    except NameError:
        return Any


def _with_defaults(hint: Any) -> Any:
    """Returns the group of fields that an optional field may have; None if some have no default."""
    for kind in typing.get_args(hint):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            with contextlib.suppress(TypeError):
                return kind()
    return None


def _suggest(name: str, fields: list[str]) -> str:
    if not fields:
        return "the value before it has no fields"
    close = difflib.get_close_matches(name, fields, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}the fields here are {', '.join(fields)}"


def _parse(text: str, hint: Any, current: Any, path: str) -> Any:
    """Returns the text as a value of the annotated type, or as another, which `check` rejects later."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if text.lower() in ("none", "null") and (origin is tuple or type(None) in arguments):
        return () if origin is tuple else None
    if origin in (typing.Union, types.UnionType):
        return _parse(text, next(a for a in arguments if a is not type(None)), current, path)
    if hint is str or origin is typing.Literal:
        return text
    if origin is tuple:
        value = _literal(text) if text.startswith(("[", "(")) else text
        return tuple(value) if isinstance(value, (list, tuple)) else (text,) if text else ()
    if isinstance(current, Mapping) and any(map(dataclasses.is_dataclass, current.values())):
        return _select_parts(text, current, path)
    if origin is Callable or str(getattr(hint, "__module__", "")).startswith(objective.__name__):
        return read_objective(text, path)
    if dataclasses.is_dataclass(hint):
        raise UserError(f"{path} is a group of fields: set one, such as {path}.{dataclasses.fields(hint)[0].name}=...")
    value = _literal(text)
    with contextlib.suppress(HintMismatch):  # a field of an objective of one's own may be a set, for example
        return convert_to_hint(value, hint)
    return value


def _select_parts(text: str, parts: Mapping[Any, Any], path: str) -> dict[Any, Any]:
    """Returns the parts that a list such as `gsm8k,math-500` names."""
    names = [name.strip() for name in text.split(",")]
    keys = {str(key): key for key in parts}
    if unknown := [name for name in names if name not in keys]:
        raise UserError(
            f"{path} has no {shorten(unknown[0])!r}: choose from {', '.join(keys)}, with commas between them"
        )
    return {keys[name]: parts[keys[name]] for name in names}


def _literal(text: str) -> Any:
    """Parses JSON or a Python literal (JSON has no `True`); returns the string itself if neither parses."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            return read(text)
    return text
