"""The rows of a file that grows, is cut, and is written again."""

import json
import os
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.plots.live.following import Part, read_part
from megatron_sspo.run_folder import metrics_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def append(path: Path, *updates: int, x: float = 0.0) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps({"update": update, "x": x}) + "\n" for update in updates))


def updates(part: Part) -> list[float]:
    return [row["update"] for row in part.rows]


def test_only_what_is_new(path: Path) -> None:
    append(path, 1, 2)
    first = read_part(path, "")
    append(path, 3)
    second = read_part(path, first.cursor)
    third = read_part(path, second.cursor)
    assert [updates(part) for part in (first, second, third)] == [[1, 2], [3], []]
    assert not any(part.is_restarted or part.has_more or part.skipped for part in (first, second, third))


def test_a_file_that_comes_later(path: Path) -> None:
    nothing = read_part(path, "")
    assert nothing == Part([], "", is_restarted=False)
    append(path, 1)
    assert updates(read_part(path, nothing.cursor)) == [1]


def test_a_half_written_line_waits_for_its_end(path: Path) -> None:
    append(path, 1)
    with path.open("a") as file:
        file.write('{"update": 2, "x"')
    first = read_part(path, "")
    assert updates(first) == [1] and first.skipped == 0 and not first.has_more
    with path.open("a") as file:
        file.write(": 1.0}\n")
    assert updates(read_part(path, first.cursor)) == [2]


@pytest.mark.parametrize("line", ["{", "[]", "1", '{"x": 1}', '{"update": "1"}', '{"update": NaN}', "\xff", "[" * 9999])
def test_lines_that_are_no_rows_are_counted(path: Path, line: str) -> None:
    append(path, 1)
    with path.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    append(path, 2)
    part = read_part(path, "")
    assert updates(part) == [1, 2] and part.skipped == 1


def test_numbers_that_are_none(path: Path) -> None:
    path.write_text('{"update": 1, "x": NaN, "y": -Infinity}\n')
    assert read_part(path, "").rows == [{"update": 1, "x": None, "y": None}]


def test_a_long_file_comes_in_parts(path: Path) -> None:
    append(path, *range(1, 101))
    found, cursor, parts = [], "", 0
    while True:
        part = read_part(path, cursor, max_bytes=300)
        found, cursor, parts = found + updates(part), part.cursor, parts + 1
        if not part.has_more:
            break
    assert found == list(range(1, 101)) and parts > 5


def test_a_row_longer_than_a_part(path: Path) -> None:
    append(path, 1)
    assert updates(read_part(path, "", max_bytes=4)) == [1]


def test_a_line_without_an_end_is_an_error(path: Path) -> None:
    path.write_bytes(b"x" * (1 << 23))
    with pytest.raises(UserError, match="has a line of more than"):
        read_part(path, "")


@pytest.mark.parametrize("kept", [0, 2])
def test_a_resumed_run_removes_rows_and_writes_others(path: Path, kept: int) -> None:
    append(path, 1, 2, 3, 4)
    cursor = read_part(path, "").cursor
    metrics_files.truncate_after(path, kept)
    part = read_part(path, cursor)
    assert part.is_restarted and updates(part) == [1, 2][:kept]
    metrics_files.truncate_after(path, 0)
    append(path, 1, 2, 3, 4, 5, 6, x=9.0)  # longer than before, so the place of the cursor exists
    part = read_part(path, cursor)
    assert part.is_restarted and updates(part) == [1, 2, 3, 4, 5, 6]


def test_a_file_of_the_same_length_and_end_is_noticed(path: Path) -> None:
    append(path, *range(1, 10))
    cursor = read_part(path, "").cursor
    path.unlink()
    append(path, 1, x=9.0)
    append(path, *range(2, 10))
    part = read_part(path, cursor)
    assert part.is_restarted and part.rows[0] == {"update": 1, "x": 9.0}


def test_a_file_written_again_with_the_same_rows_goes_on(path: Path) -> None:
    append(path, 1, 2, 3)
    cursor = read_part(path, "").cursor
    metrics_files.truncate_after(path, 3)
    append(path, 4)
    part = read_part(path, cursor)
    assert not part.is_restarted and updates(part) == [4]


def test_a_removed_file(path: Path) -> None:
    append(path, 1)
    cursor = read_part(path, "").cursor
    path.unlink()
    assert read_part(path, cursor) == Part([], "", is_restarted=True)


@pytest.mark.parametrize("cursor", ["x", "-1-00000000", "9" * 40, "5", "99999-00000000", "²-0"])
def test_a_cursor_of_no_place_begins_again(path: Path, cursor: str) -> None:
    append(path, 1, 2)
    part = read_part(path, cursor)
    assert part.is_restarted and updates(part) == [1, 2]


def test_no_regular_file(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(UserError, match="it is a pipe"):
        read_part(path, "")
