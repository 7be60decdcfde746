"""Reads files from outside: only regular files are opened, and every problem gives an error of one sentence."""

import errno
import json
import math
import os
import stat
from collections import Counter
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NoReturn

from megatron_sspo.errors import UserError, short_repr

_MAX_TEXT = 512 * 1024**2  # bytes; the largest JSON file of a model is a tokenizer.json of some 50 MB
_MAX_NUMBER = 40  # characters of a number in a message
_DOWNLOAD = "download or copy it again"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_file(path: Path | str) -> BinaryIO:
    """Opens a regular file for reading. A pipe could block the reader, and a device may have no end.

    Raises:
        OSError: the file does not exist, cannot be read, or is not a regular file.
    """
    check_regular_file(path)
    return open(open_descriptor(path), "rb")


def open_descriptor(path: Path | str) -> int:
    """Opens a regular file for reading and returns its file descriptor; raises what `open_file` raises."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular_file(path: Path | str) -> None:
    """Checks that a path is a regular file, without opening it.

    Raises:
        OSError: the file does not exist or is not a regular file.
    """
    _check_regular(os.stat(path), path)


def is_inside(name: str) -> bool:
    """Returns whether a relative path that another file contains stays inside the folder that it is relative to."""
    path = PurePath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _check_regular(status: os.stat_result, path: Path | str) -> None:
    for is_kind, name in _KINDS:
        if is_kind(status.st_mode):
            raise OSError(errno.EINVAL, f"it is {name}, not a regular file", str(path))


def read_bytes(path: Path, *, at_most: int = _MAX_TEXT, remedy: str = _DOWNLOAD) -> bytes:
    """Returns the content of a regular file.

    Args:
        at_most: the largest size in bytes.
        remedy: what to do about a damaged file, for the message.

    Raises:
        UserError: the file cannot be read, or has more than `at_most` bytes.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > at_most:
                raise UserError(f"{path} has {size:,} bytes, which is too large for a file of this kind; {remedy}")
            return file.read()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def read_text(path: Path, *, remedy: str = _DOWNLOAD) -> str:
    """Returns the content of a text file in UTF-8.

    Args:
        remedy: what to do about a damaged file, for the message.

    Raises:
        UserError: the file cannot be read, or is not UTF-8.
    """
    try:
        return read_bytes(path, remedy=remedy).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start:,} is not valid; {remedy}") from error


def read_json(path: Path, *, remedy: str = f"correct it, or {_DOWNLOAD}") -> dict[str, Any]:
    """Returns the object in a JSON file.

    Args:
        remedy: what to do about a damaged file, for the message.

    Raises:
        UserError: the file cannot be read, or is not a JSON object.
    """
    text = read_text(path, remedy=remedy)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; {remedy}")
    return content


def parse_json(text: str | bytes) -> Any:
    """Parses standard JSON: NaN, numbers that a float cannot hold and duplicate names in an object are errors.

    Raises:
        ValueError: the text is not standard JSON, or is nested too deeply.
    """
    try:
        return json.loads(
            text,
            parse_constant=_reject_constant,
            parse_float=_finite,
            object_pairs_hook=dict_without_duplicates,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name} as a number")


def _finite(text: str) -> float:
    number = float(text)  # of `1e999`, infinity
    if not math.isfinite(number):
        _reject_constant(text if len(text) < _MAX_NUMBER else f"{text[:_MAX_NUMBER]}...")
    return number


def dict_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object of a JSON text. Raises ValueError if it has a name twice, of which one would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"it has {short_repr(counts.most_common(1)[0][0])} twice")
    return found
