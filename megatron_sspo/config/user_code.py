"""Turns an exception of the user's own Python into an error of one sentence that names the user's line."""

import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron_sspo.config.naming import describe_value, one_line, shorten
from megatron_sspo.errors import UserError

_LONGEST_ERROR = 1000  # characters of an exception's text
_PACKAGE = f"{Path(__file__).parents[1]}/"
_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
_DEPENDENCIES = tuple(
    f"{folder}{name}/" for folder in _INSTALLED for name in ("torch", "megatron", "numpy", "transformers")
)


@contextmanager
def user_code_errors(what: str, *, always: bool = False) -> Iterator[None]:
    """A context manager for a call of code that may be the user's. KeyboardInterrupt is not changed.

    Args:
        what: the name of the code for the message: "the recipe x.py".
        always: whether an exception without a line of the user's also becomes a UserError; otherwise it is not changed,
            because it comes from this package.

    Raises:
        UserError: the user's code raised; the message has the file, the line and its text, and the error. If a file of
            the user's calls another, it has both lines.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError) and error.filename:
            text = f" (`{one_line(error.text)}`)" if error.text else ""
            raise UserError(
                f"{_relative_path(error.filename)}, line {error.lineno} is not Python: {one_line(error.msg)}{text}"
            ) from error
        places = _user_lines(error)
        if not places and _is_call_error(error):
            raise UserError(f"{what} cannot be called as it has to be: {one_line(str(error))}") from error
        if not places and (not always or isinstance(error, UserError)):
            raise
        raise UserError(f"{', '.join(places) or what}: {_describe_error(error)}") from error


def call_user_code(function: Callable[[], Any], what: str) -> Any:
    """Calls a function without arguments that may be the user's, such as `close`: see `user_code_errors`."""
    with user_code_errors(what):
        return function()


def metrics_of(part: Any, what: str, *, prefix: str = "") -> dict[str, float]:
    """Returns the numbers of a plug-in's `metrics`, with `prefix` before their names; none if it has no such method.

    Raises UserError if the user's `metrics` raises, or does not return a dictionary of numbers; `what` names the
    plug-in.
    """
    metrics = getattr(part, "metrics", None)
    if metrics is None:
        return {}
    found = call_user_code(metrics, f"{what}'s metrics")
    try:
        return {f"{prefix}{name}": n if isinstance(n, int | float) else float(n) for name, n in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"{what}'s metrics returned {describe_value(found)} ({one_line(str(error))}): it must return a dict of "
            "numbers by name"
        ) from error


def _describe_error(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r}): a recipe or plug-in must return instead"
    return f"{type(error).__name__}: {shorten(str(error), _LONGEST_ERROR)}".removesuffix(": ")


def _is_call_error(error: BaseException) -> bool:
    """Returns whether the call in the body of `user_code_errors` failed, because the function has other parameters."""
    body = error.__traceback__.tb_next if error.__traceback__ else None  # after the frame of `user_code_errors`
    return isinstance(error, TypeError) and body is not None and body.tb_next is None


def _user_lines(error: BaseException) -> list[str]:
    """Returns the first and last line of the user's code in the traceback, or else of an installed package."""
    others = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_file(frame.filename)]
    frames = [frame for frame in others if not frame.filename.startswith(_INSTALLED)] or others
    found = []
    for frame in frames[:1] + frames[1:][-1:]:
        text = f" (`{one_line(frame.line)}`)" if frame.line else ""
        found.append(f"{_relative_path(frame.filename)}, line {frame.lineno}{text}")
    return list(dict.fromkeys(found))


def _is_user_file(file: str) -> bool:
    """Returns whether a file belongs neither to this package, nor to a library that it calls, nor to Python itself."""
    if file.startswith(_DEPENDENCIES) or "/sspo_" in file:  # a library of packages/
        return False
    installed = file.startswith(_INSTALLED)
    return not file.startswith(("<", _PACKAGE)) and (installed or not file.startswith(_PYTHON))


def _relative_path(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
