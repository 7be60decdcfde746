"""The lines of a file that grows, is cut, and is written again."""

import json
from pathlib import Path

import pytest

from packages.lab.tests import folders
from sspo_lab.live.rows import Part, first_lines, read_part
from sspo_lab.trainer import LabError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def append(path: Path, *updates: int, x: float = 0.0) -> None:
    folders.append(path.parent, *({"update": update, "x": x} for update in updates), name=path.name)


def updates(part: Part) -> list[float]:
    return [json.loads(line)["update"] for line in part.lines.splitlines()]


def test_only_what_is_new_and_whole(path: Path) -> None:
    nothing = read_part(path, "")
    assert nothing == Part(b"", "", is_restarted=False)
    append(path, 1, 2)
    first = read_part(path, nothing.cursor)
    append(path, 3)
    with path.open("a") as file:
        file.write('{"update": 4, "x"')
    second = read_part(path, first.cursor)
    third = read_part(path, second.cursor)
    assert [updates(part) for part in (first, second, third)] == [[1, 2], [3], []]
    assert not any(part.is_restarted or part.has_more for part in (first, second, third))
    with path.open("a") as file:
        file.write(": 1.0}\n")
    assert updates(read_part(path, third.cursor)) == [4]


def test_a_long_file_comes_in_parts_and_a_row_may_be_longer_than_a_part(path: Path) -> None:
    append(path, *range(1, 101))
    found, cursor, parts = [], "", 0
    while True:
        part = read_part(path, cursor, max_bytes=300)
        found, cursor, parts = found + updates(part), part.cursor, parts + 1
        if not part.has_more:
            break
    assert found == list(range(1, 101)) and parts > 5
    assert updates(read_part(path, "", max_bytes=4)) == [1]
    path.write_bytes(b"x" * (1 << 23))
    with pytest.raises(LabError, match="has a line of more than"):
        read_part(path, "")


def test_a_resumed_run_removes_rows_and_writes_others(path: Path) -> None:
    append(path, *range(1, 10))
    cursor = read_part(path, "").cursor
    path.unlink()
    assert read_part(path, cursor) == Part(b"", "", is_restarted=True)
    append(path, 1, 2)
    assert read_part(path, cursor).is_restarted and updates(read_part(path, cursor)) == [1, 2]
    path.unlink()
    append(path, 1, x=9.0)
    append(path, *range(2, 12))  # longer than before, so the place of the cursor exists
    assert read_part(path, cursor).is_restarted and updates(read_part(path, cursor)) == list(range(1, 12))
    path.unlink()
    append(path, *range(1, 11))  # the same rows
    assert not read_part(path, cursor).is_restarted and updates(read_part(path, cursor)) == [10]


@pytest.mark.parametrize("cursor", ["x", "-1-00000000", "9" * 9, "5", "99999-00000000", "²-0"])
def test_a_cursor_of_no_place_begins_again(path: Path, cursor: str) -> None:
    append(path, 1, 2)
    part = read_part(path, cursor)
    assert part.is_restarted and updates(part) == [1, 2]


def test_few_lines_of_many_and_a_note_for_one_that_is_too_long(path: Path) -> None:
    append(path, *range(100))
    assert len(first_lines(path).splitlines()) == 16
    path.write_bytes(b'"a"\n"' + b"x" * 10_000_000 + b'"\n"b"\n"cut')
    first, note, last = first_lines(path).splitlines()
    assert (first, last) == (b'"a"', b'"b"')
    assert json.loads(note) == {"note": "a response of more than 4,194,304 bytes is left out"}
