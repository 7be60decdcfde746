"""Recognizes a file that is named .jsonl or .parquet and is of another format, by its first bytes."""

import re
from pathlib import Path

from megatron_sspo.errors import UserError

_UNPACK = "compressed by {}: unpack it, and name the unpacked file"
_ARRAY = re.compile(rb"\[\s*(\{|$)")  # of objects
_FORMATS = (
    (b"version https://git-lfs", "a pointer of Git LFS, without the rows: get the file with `git lfs pull`"),
    (b"\x1f\x8b", _UNPACK.format("gzip")),
    (b"\x28\xb5\x2f\xfd", _UNPACK.format("zstd")),
    (b"BZh", _UNPACK.format("bzip2")),
    (b"\xfd7zXZ", _UNPACK.format("xz")),
    (b"PK\x03\x04", "a zip archive: unpack it, and name the unpacked file"),
    (b"<", "HTML or XML, perhaps a web page in place of the file: download it again"),
)
_PARQUET = (b"PAR1", "Parquet: give it a name that ends in .parquet")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def check_is_jsonl(path: Path, start: bytes) -> None:
    """Raises UserError if the first line of a file named .jsonl is the beginning of another format."""
    start = start.removeprefix(_BYTE_ORDER_MARK).strip()
    _check(path, start, (*_FORMATS, _PARQUET))
    if _ARRAY.match(start):
        raise UserError(
            f"{path} is a JSON array: write each of its objects on a line of its own, for example by `jq -c '.[]'`"
        )


def check_is_parquet(path: Path, start: bytes) -> None:
    """Raises UserError if the first bytes of a file named .parquet are those of another format."""
    _check(path, start, _FORMATS)


def _check(path: Path, start: bytes, formats: tuple[tuple[bytes, str], ...]) -> None:
    for beginning, what in formats:
        if start.startswith(beginning):
            raise UserError(f"{path} is {what}")
