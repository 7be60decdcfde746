"""`--set objective.token_gate.tau_pos=0.5`: rebuilds the frozen configuration with one value changed."""

import ast
import contextlib
import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from megatron_sspo import objective
from megatron_sspo.errors import UserError

T = TypeVar("T")


def override(config: T, assignments: Sequence[str]) -> T:
    """Applies `path=value` assignments to a tree of frozen dataclasses, from left to right.

    A value is read by the type of its field. Where a field holds a part of the objective, the value is an expression
    such as `grpo(eps_high=0.28)` or `sspo(SigLog(0.6, 0.5))`.

    Raises:
        UserError: an unknown field (the message names the valid ones) or a value of the wrong type.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment!r} has no '=': write it as field.field=value")
        config = _replace(config, path.strip().split("."), text.strip(), path.strip())
    return config


def describe(value: Any) -> Any:
    """The configuration as JSON values; classes and functions by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if callable(value):
        return getattr(value, "__qualname__", repr(value))
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _replace(config: Any, path: list[str], text: str, full_path: str) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(config, Mapping):
        if any(map(dataclasses.is_dataclass, config.values())) and name not in config:
            raise UserError(f"there is no {full_path!r}: {_suggestion(name, list(config))}")
        return {**config, name: _replace(config.get(name, {}), rest, text, full_path) if rest else _literal(text)}
    fields = [f.name for f in dataclasses.fields(config)] if dataclasses.is_dataclass(config) else []
    if name not in fields:
        raise UserError(f"there is no field {full_path!r}: {_suggestion(name, fields)}")
    if rest:
        value = _replace(getattr(config, name), rest, text, full_path)
    else:
        value = _parse(text, typing.get_type_hints(type(config))[name], getattr(config, name), full_path)
    replace: Any = dataclasses.replace
    try:
        return replace(config, **{name: value})
    except ValueError as error:
        raise UserError(f"{full_path}={text} is refused: {error}") from error


def _suggestion(name: str, fields: list[str]) -> str:
    if not fields:
        return "the part before it is a plain value"
    close = difflib.get_close_matches(name, fields, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}the fields here are {', '.join(fields)}"


def _parse(text: str, hint: Any, current: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if text.lower() in ("none", "null") and type(None) in arguments:
            return None
        hint = next(a for a in arguments if a is not type(None))
        return _parse(text, hint, current, path)
    if origin is typing.Literal:
        if text not in arguments:
            raise UserError(f"{path}={text} is not one of {', '.join(map(str, arguments))}")
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{path}={text} is not a truth value: write true or false")
        return text.lower() == "true"
    if hint in (int, float):
        try:
            number = hint(text)
            if number != number:
                raise ValueError
            return number
        except ValueError:
            raise UserError(f"{path}={text} is not {'an integer' if hint is int else 'a number'}") from None
    if hint is str:
        return text
    if origin is tuple:
        return _tuple(text, arguments[0], path)
    if origin is not None and isinstance(current, Mapping):
        if any(map(dataclasses.is_dataclass, current.values())):
            return _chosen(text, current, path)
        value = _literal(text)
        if not isinstance(value, Mapping):
            raise UserError(f"{path}={text} is not a JSON object: write it as '{{\"key\": value}}'")
        return value
    if dataclasses.is_dataclass(hint) and getattr(hint, "__name__", "") not in objective.__all__:
        raise UserError(f"{path} is a group of fields: set one, such as {path}.{dataclasses.fields(hint)[0].name}=...")
    value = _expression(text, path)
    if not _fits(value, hint):
        raise UserError(
            f"{path}={text} does not fit there: write an objective as grpo(eps_high=0.28) or sspo(SigLog(0.6, 0.5)), "
            "a gate as SigLog(0.6, 0.5), a pooling as geometric"
        )
    return value


def _fits(value: Any, hint: Any) -> bool:
    if dataclasses.is_dataclass(hint):
        return isinstance(value, typing.cast(type, hint))
    if isinstance(value, type):
        return False
    return hasattr(value, "log_gate") if hint is objective.Gate else callable(value)


def _chosen(text: str, parts: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Some of the named parts: `gsm8k,math-500`."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in parts]:
        raise UserError(f"{path}={text} names {unknown[0]!r}: choose of {', '.join(parts)}, with commas between them")
    return {name: parts[name] for name in names}


def _tuple(text: str, hint: Any, path: str) -> tuple[Any, ...]:
    """A JSON list, or one bare value; nothing is the empty tuple."""
    value = _literal(text) if text.startswith("[") else [text] if text else []
    if not isinstance(value, list) or not all(isinstance(item, hint) for item in value):
        raise UserError(f'{path}={text} is not a JSON list of {hint.__name__}: write it as \'["a", "b"]\'')
    return tuple(value)


def _literal(text: str) -> Any:
    """JSON or a Python literal (True is no JSON) where it parses, the bare string otherwise."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            return read(text)
    return text


def _expression(text: str, path: str) -> Any:
    """A call of a public name of `megatron_sspo.objective`, with literals or such calls as arguments."""

    def build(node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in objective.__all__:
            return getattr(objective, node.id)
        if isinstance(node, ast.Call):
            keywords = {str(k.arg): build(k.value) for k in node.keywords}
            return build(node.func)(*[build(a) for a in node.args], **keywords)
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise ValueError(f"{ast.unparse(node)} is neither a literal nor a known name") from None

    try:
        return build(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}={text} cannot be read ({error}): write a value such as sspo(SigLog(0.6, 0.5)), built from "
            f"{', '.join(objective.__all__)}"
        ) from error
