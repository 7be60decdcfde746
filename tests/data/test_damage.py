"""Damaged files of prompts."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from megatron_sspo.data.load import load_rows
from megatron_sspo.data.sources import jsonl, parquet
from megatron_sspo.errors import UserError

MODULES = {"gzip": gzip, "bzip2": bz2, "xz": lzma}
LINE = '{"question": "é?", "answer": "1"}'


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_byte_order_marks_and_windows_line_endings(tmp_path: Path, start: bytes, end: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(start + (LINE + end + LINE).encode())
    assert [row.question for row in jsonl.rows(tmp_path / "a.jsonl")] == ["é?", "é?"]


@pytest.mark.parametrize("line", [b"\0", b"[" * 100_000, b"\xef\xbb\xbf{}"])
def test_malformed_lines(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE.encode() + b"\n" + line + b"\n")
    with pytest.raises(UserError, match="line 2: not") as raised:
        jsonl.rows(tmp_path / "a.jsonl")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1, "a": 2}', "not a record that can be read (it has 'a' twice): correct the line"),
        (b'{"digits": 1, "digits": 2}', "not a record that can be read (it has 'digits' twice): correct the line"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not a record that can be read (a number has thousands of digits)"),
    ],
)
def test_json_that_cannot_be_read_is_not_called_no_json(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(line)
    with pytest.raises(UserError) as raised:
        jsonl.rows(tmp_path / "a.jsonl")
    assert f"line 1: {message}" in str(raised.value)


COMPRESSED = [
    pytest.param(module.compress(LINE.encode()), f"compressed by {name}: unpack it", id=name)  # gzip writes the time
    for name, module in MODULES.items()
]
OTHERS = [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a pointer of Git LFS"),
    (b"\x28\xb5\x2f\xfd" + bytes(9), "compressed by zstd"),
    (b"PK\x03\x04" + bytes(9), "a zip archive"),
    (b"<!DOCTYPE html>\n<html>", "HTML or XML"),
    *COMPRESSED,
]


@pytest.mark.parametrize(("content", "message"), OTHERS)
@pytest.mark.parametrize("source", [jsonl, parquet])
def test_a_file_of_another_format_is_named(tmp_path: Path, content: bytes, message: str, source) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError) as raised:
        source.rows(tmp_path / "a")
    assert f"{tmp_path / 'a'} is {message}" in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1" + bytes(9), "Parquet: give it a name that ends in .parquet"),
        (f"[{LINE}]".encode(), "a JSON array: write each of its objects on a line of its own"),
        (f"\ufeff[\n  {LINE}\n]".encode(), "a JSON array"),
    ],
)
def test_a_file_named_jsonl_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UserError) as raised:
        jsonl.rows(tmp_path / "a.jsonl")
    assert f"a.jsonl is {message}" in str(raised.value)


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
    for content in (
        b"",
        whole[:-8],
        whole[: len(whole) // 2],
        b"PAR1" + bytes(100) + b"PAR1",
        whole[4:],
        LINE.encode(),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read as Parquet") as raised:
            parquet.rows(path)
        assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("/proc/self/mem")  # a regular file that gives an error at its first byte
    with pytest.raises(UserError, match=r"cannot read .*a\.jsonl: Input/output error; repair it"):
        jsonl.rows(tmp_path / "a.jsonl")


def test_columns_of_one_name(tmp_path: Path) -> None:
    table = pyarrow.table([["q"], ["1"], ["2"]], names=["question", "answer", "answer"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet has two columns 'answer'"):
        parquet.rows(tmp_path / "a.parquet")


def test_an_unknown_zone_of_time(tmp_path: Path) -> None:
    times = pyarrow.array([1], pyarrow.timestamp("s", tz="No/Where"))
    pyarrow.parquet.write_table(pyarrow.table([["q"], ["1"], times], names=["question", "answer", "t"]), tmp_path / "a")
    with pytest.raises(UserError, match=r"cannot be read as Parquet .*No/Where"):
        parquet.rows(tmp_path / "a")


def test_metadata_too_deep_to_be_written_again(tmp_path: Path) -> None:
    for depth in (50, 500):
        (tmp_path / "a.jsonl").write_text('{"question": "q", "answer": "1", "m": ' + "[" * depth + "]" * depth + "}")
        if depth == 50:
            assert len(load_rows(str(tmp_path / "a.jsonl"), {})) == 1
        else:
            with pytest.raises(UserError, match=r"row .a\.jsonl:1.: the metadata has more than 100 levels: flatten it"):
                load_rows(str(tmp_path / "a.jsonl"), {})
