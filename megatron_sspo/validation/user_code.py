"""Makes what a user's own Python raises an error of one sentence, with the user's line and none of this package."""

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.validation.naming import one_line

_PACKAGE = f"{Path(__file__).parents[1]}/"
_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))


@contextmanager
def user_code(what: str, *, always: bool = False) -> Iterator[None]:
    """A context for a call of what may be the user's code. Ctrl-C passes.

    Args:
        what: whose code it is, for the message: "the recipe x.py".
        always: an error without a line of the user's is reported in the same way; otherwise it passes, as one of this
            package's own.

    Raises:
        UserError: the file, the line and its text, and the error. Where one file of the user's calls another, both.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
            raise not_python(error) from error
        places = _places(error)
        if not places and (not always or isinstance(error, UserError)):
            raise
        raise UserError(f"{', '.join(places) or what}: {_told(error)}") from error


def not_python(error: SyntaxError) -> UserError:
    """A slip of syntax, with its line."""
    line = f", line {error.lineno}" if error.lineno else ""
    text = f" (`{one_line(error.text)}`)" if error.text and error.text.strip() else ""
    return UserError(f"{_shown(error.filename or 'a file')}{line} is not Python: {one_line(error.msg)}{text}")


def _told(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r}): a recipe or plug-in has to return instead"
    try:
        text = one_line(str(error))
    except Exception:  # an exception of the user's, whose __str__ fails
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _places(error: BaseException) -> list[str]:
    """The first and the last line of the user's that the error came through, or of a package that is installed."""
    others = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_others(frame.filename)]
    frames = [frame for frame in others if not frame.filename.startswith(_INSTALLED)] or others
    ends = frames[:1] + frames[-1:] if len(frames) > 1 else frames
    found = []
    for frame in ends:
        linecache.checkcache(frame.filename)
        text = f" (`{one_line(frame.line)}`)" if frame.line else ""
        found.append(f"{_shown(frame.filename)}, line {frame.lineno}{text}")
    return list(dict.fromkeys(found))


def _is_others(file: str) -> bool:
    """Whether a file is neither of this package nor of Python itself."""
    installed = file.startswith(_INSTALLED)
    return not file.startswith(("<", _PACKAGE)) and (installed or not file.startswith(_PYTHON))


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
