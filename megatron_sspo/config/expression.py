"""Reads an objective, or a part of one, from text: `sspo(SigLog(0.6, 0.5))`, or the place of one of your own."""

import ast
import re
from typing import Any

from megatron_sspo import objective
from megatron_sspo.config.naming import one_line, shorten
from megatron_sspo.config.resolve import resolve
from megatron_sspo.errors import UserError

_ATTRIBUTE_PATH = re.compile(r"(.+\.py|[\w.-]+):\w+")  # file.py:attribute or package.module:attribute


def read_objective(text: str, path: str) -> Any:
    """Returns the value of an expression, or the object at `package.module:attribute` or `file.py:attribute`.

    Args:
        text: calls of public names of `megatron_sspo.objective`, with literals or such calls as arguments.
        path: the option, for messages.

    Raises:
        UserError: the text cannot be read, or there is no such object.
    """
    if _ATTRIBUTE_PATH.fullmatch(text):
        return resolve("objective", text, "")
    try:
        return _build(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, TypeError) as error:
        raise UserError(
            f"{path}={shorten(text)} cannot be read ({one_line(str(error))}): write a value such as "
            "sspo(SigLog(0.6, 0.5)) or grpo(), built from the names of megatron_sspo.objective, which "
            "docs/objectives.md and docs/zoo.md list, or file.py:attribute"
        ) from error


def _build(node: ast.expr) -> Any:
    """Evaluates a call of a public name of `megatron_sspo.objective`, with literals or such calls as arguments."""
    if isinstance(node, ast.Name) and node.id in objective.__all__:
        return getattr(objective, node.id)
    if isinstance(node, ast.Call):
        keywords = {str(k.arg): _build(k.value) for k in node.keywords}
        return _build(node.func)(*map(_build, node.args), **keywords)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{shorten(ast.unparse(node))} is neither a literal nor a known name") from None
