"""Reads an objective, or a part of one, from text: `sspo(SigLog(0.6, 0.5))`, or the place of one of your own."""

import ast
import re
from typing import Any

from megatron_sspo import objective
from megatron_sspo.config.naming import one_line, shorten
from megatron_sspo.config.resolve import resolve
from megatron_sspo.errors import UserError

_ATTRIBUTE_PATH = re.compile(r"(.+\.py|[\w.-]+):\w+")  # file.py:attribute or package.module:attribute
UNREADABLE = (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError)
"""Exceptions that Python's parsers raise for text that is not a value."""


_REMEDY = (
    "write a value such as sspo(SigLog(0.6, 0.5)) or grpo(), built from the names of megatron_sspo.objective, which "
    "docs/objectives.md and docs/zoo.md list, or file.py:attribute"
)


def read_objective(text: str, path: str, remedy: str = _REMEDY) -> Any:
    """Returns the value of an expression, or the object at `package.module:attribute` or `file.py:attribute`.

    Args:
        text: calls of public names of `megatron_sspo.objective`, with literals or such calls as arguments.
        path: the option, for messages.
        remedy: what to write instead, for messages.

    Raises:
        UserError: the text cannot be read, or there is no such object.
    """
    return resolve("objective", text, "") if _ATTRIBUTE_PATH.fullmatch(text) else _expression(text, path, remedy)


def _expression(text: str, path: str, remedy: str) -> Any:
    """Evaluates a call of a public name of `megatron_sspo.objective`, with literals or such calls as arguments."""

    def build(node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in objective.__all__:
            return getattr(objective, node.id)
        if isinstance(node, ast.Call):
            names = [str(k.arg) for k in node.keywords]
            if twice := [name for name in names if names.count(name) > 1]:  # which `ast.parse` accepts
                raise ValueError(f"{shorten(ast.unparse(node.func))} is given {twice[0]} twice")
            keywords = {str(k.arg): build(k.value) for k in node.keywords}
            return build(node.func)(*[build(a) for a in node.args], **keywords)
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise ValueError(f"{shorten(ast.unparse(node))} is neither a literal nor a known name") from None

    try:
        return build(ast.parse(text.strip(), mode="eval").body)
    except UNREADABLE as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        why = one_line(reason) or "it is nested too deeply"
        raise UserError(f"{path}={shorten(text)} cannot be read ({why}): {remedy}") from error
