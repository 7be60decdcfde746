"""Damaged files of prompts."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from megatron_sspo.data.sources import jsonl, parquet
from megatron_sspo.errors import UserError

LINE = '{"question": "é?", "answer": "1"}'


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_byte_order_marks_and_windows_line_endings(tmp_path: Path, start: bytes, end: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(start + (LINE + end + LINE).encode())
    assert [row.question for row in jsonl.rows(tmp_path / "a.jsonl")] == ["é?", "é?"]


@pytest.mark.parametrize(
    "line", [b"\0", b"[" * 100_000, b"\xff", b"{", b"\xef\xbb\xbf{}", b'{"a": ' + b"1" * 5000 + b"}"]
)
def test_malformed_lines(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE.encode() + b"\n" + line + b"\n")
    with pytest.raises(UserError, match="line 2: not") as raised:
        jsonl.rows(tmp_path / "a.jsonl")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("names", [[f"k{n}" for n in range(100_000)], ["k" * 10**7]])
def test_a_line_of_other_fields_is_a_short_error(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(dict.fromkeys(names, 1)))
    with pytest.raises(UserError, match="there is no such field among 'k") as raised:
        jsonl.rows(tmp_path / "a.jsonl")
    assert len(str(raised.value)) < 2000


def test_a_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"question": [f"q{n}" for n in range(2000)], "answer": [str(n) for n in range(2000)]})
    pyarrow.parquet.write_table(table, path)
    whole = path.read_bytes()
    for content in (b"", whole[:-8], whole[: len(whole) // 2], b"PAR1" + bytes(100) + b"PAR1", whole[4:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read as Parquet") as raised:
            parquet.rows(path)
        assert "\n" not in str(raised.value)
