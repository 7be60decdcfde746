"""Reads the new rows of a file that a run appends to, a bounded part at a time."""

import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import open_file
from megatron_sspo.run_folder.metrics_files import is_update

_MAX_BYTES = 1 << 20  # of one part, some 700 rows of metrics
_LONGEST_LINE = 1 << 22
_MARK = 1 << 12  # bytes before a position, whose checksum tells whether the rows before it have changed


@dataclass(frozen=True)
class Part:
    """Some rows of a file.

    Attributes:
        rows: the rows in their order; each has an update.
        cursor: the place of the next row, for the next call.
        is_restarted: whether the rows before the cursor have changed, so that these rows are the first of the file.
        has_more: whether the file may have further rows already, because this part is full.
        skipped: the number of complete lines that are not rows.
    """

    rows: list[dict[str, Any]]
    cursor: str
    is_restarted: bool
    has_more: bool = False
    skipped: int = 0


def read_part(path: Path, cursor: str, *, max_bytes: int = _MAX_BYTES) -> Part:
    """Returns the complete rows after a cursor; "" stands for the beginning, and a missing file has no rows.

    A run that is resumed removes rows and writes them again. The cursor therefore has a checksum of the bytes before
    it, and reading starts again at the beginning if they are different.

    Raises:
        UserError: the file cannot be read, or a line is too long.
    """
    try:
        with open_file(path) as file:
            position = _position(file, cursor)
            file.seek(position)
            content = file.read(max_bytes)
            if b"\n" not in content and len(content) == max_bytes:
                content += file.readline(_LONGEST_LINE)
                if len(content) > _LONGEST_LINE:
                    raise UserError(f"{path} has a line of more than {_LONGEST_LINE:,} bytes: was it written by a run?")
            whole = content[: content.rfind(b"\n") + 1]
            end = position + len(whole)
            mark = _checksum(file, end)
    except FileNotFoundError:
        return Part([], "", is_restarted=cursor != "")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    lines = [line for line in whole.split(b"\n") if line.strip()]
    rows = [row for row in map(parse_object, lines) if row is not None and is_update(row.get("update"))]
    return Part(
        rows,
        f"{end}-{mark}",
        is_restarted=position == 0 and cursor != "",
        has_more=bool(whole) and len(content) >= max_bytes,
        skipped=len(lines) - len(rows),
    )


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Returns the JSON object of a line, with None for NaN and infinities; None if the line has no object."""
    try:
        found = json.loads(line, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _finite(text: str) -> float | None:
    number = float(text)  # of `1e999`, infinity
    return number if math.isfinite(number) else None


def _position(file: BinaryIO, cursor: str) -> int:
    """Returns the position of a cursor, or 0 if the bytes before it have changed."""
    end, _, mark = cursor.partition("-")
    if not end.isdecimal() or len(end) > 18:
        return 0
    return int(end) if _checksum(file, int(end)) == mark else 0


def _checksum(file: BinaryIO, end: int) -> str:
    """Returns a checksum of the last bytes before `end`; "" if the file ends before `end`."""
    first = max(0, end - _MARK)
    file.seek(first)
    content = file.read(end - first)
    return f"{zlib.crc32(content):08x}" if len(content) == end - first else ""
