"""Damaged files of prompts."""

import gzip
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from megatron_sspo.data.open import load_rows
from megatron_sspo.data.sources import jsonl
from megatron_sspo.errors import UserError

LINE = '{"question": "é?", "answer": "1"}'


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_byte_order_marks_and_windows_line_endings(tmp_path: Path, start: bytes, end: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(start + (LINE + end + LINE).encode())
    assert [row.question for row in jsonl.rows(tmp_path / "a.jsonl")] == ["é?", "é?"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (LINE.encode() + b'\n{"question": "', 2),
        (LINE.encode() + b'\n{"question": "\xff"}', 2),
        (LINE.encode() + b"\n" + b"[" * 100_000, 2),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", 1),
        (gzip.compress(LINE.encode()), 1),
        (f"[\n  {LINE}\n]".encode(), 1),
    ],
)
def test_a_line_that_is_not_json_is_named(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(
        UserError, match=rf"a\.jsonl, line {line}: not JSON in UTF-8 .* nor a pointer of Git LFS"
    ) as raised:
        jsonl.rows(tmp_path / "a.jsonl")
    assert "\n" not in str(raised.value)


def test_a_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"question": [f"q{n}" for n in range(2000)], "answer": [str(n) for n in range(2000)]})
    pyarrow.parquet.write_table(table, path)
    whole = path.read_bytes()
    for content in (b"", whole[:-8], whole[: len(whole) // 2], whole[4:], LINE.encode()):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read as Parquet") as raised:
            load_rows(str(path), {})
        assert "\n" not in str(raised.value)
