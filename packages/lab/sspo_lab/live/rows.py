"""Reads files that a run writes: the lines that are new, a bounded part at a time, and the first lines."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sspo_lab.trainer import LabError

_MAX_BYTES = 1 << 20  # of one part, some 700 rows of metrics
_MARK = 1 << 12  # bytes before a position, whose checksum tells whether the lines before it have changed
_MAX_LINES = 16
_LONGEST_LINE = 1 << 22  # bytes


@dataclass(frozen=True)
class Part:
    """Some complete lines of a file.

    Attributes:
        lines: the lines.
        cursor: the place of the next line, for the next call.
        is_restarted: whether the lines before the cursor have changed, so that these lines are the first of the file.
        has_more: whether the file may have further lines already, because this part is full.
    """

    lines: bytes
    cursor: str
    is_restarted: bool
    has_more: bool = False


def read_part(path: Path, cursor: str, *, max_bytes: int = _MAX_BYTES) -> Part:
    """Returns the complete lines after a cursor; "" stands for the beginning, and a missing file has no lines.

    A run that is resumed removes rows and writes them again. The cursor therefore has a checksum of the bytes before
    it, and reading starts again at the beginning if they are different. Raises LabError if a line is too long.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return Part(b"", "", is_restarted=cursor != "")
    with file:
        position = _position(file, cursor)
        file.seek(position)
        content = file.read(max_bytes)
        is_full = len(content) == max_bytes
        if b"\n" not in content and is_full:
            content += file.readline(_LONGEST_LINE)
            if len(content) > _LONGEST_LINE:
                raise LabError(f"{path} has a line of more than {_LONGEST_LINE:,} bytes: was it written by a run?")
        lines = content[: content.rfind(b"\n") + 1]
        end = position + len(lines)
        restarted = position == 0 and cursor != ""
        return Part(lines, f"{end}-{_checksum(file, end)}", restarted, has_more=is_full and bool(lines))


def first_lines(path: Path) -> bytes:
    """Returns the first complete lines of a file; in the place of one that is too long, JSON with a `note`."""
    found: list[bytes] = []
    with path.open("rb") as file:
        while len(found) < _MAX_LINES:
            line = file.readline(_LONGEST_LINE)
            if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = file.readline(_LONGEST_LINE)
                line = f'{{"note": "a response of more than {_LONGEST_LINE:,} bytes is left out"}}\n'.encode()
            if not line.endswith(b"\n"):
                break
            found.append(line)
    return b"".join(found)


def _position(file: BinaryIO, cursor: str) -> int:
    """Returns the position of a cursor, or 0 if the bytes before it have changed."""
    end, _, mark = cursor.partition("-")
    return int(end) if mark and end.isdecimal() and _checksum(file, int(end)) == mark else 0


def _checksum(file: BinaryIO, end: int) -> str:
    """Returns a checksum of the last bytes before `end`; "" if the file ends before `end`."""
    first = max(0, end - _MARK)
    file.seek(first)
    content = file.read(end - first)
    return f"{zlib.crc32(content):08x}" if len(content) == end - first else ""
