"""The named sets, read from rows in their published schema."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from megatron_sspo.data.open import load_rows
from megatron_sspo.data.row import Dropped, Row
from megatron_sspo.errors import UserError

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = {
    "gsm8k": "train",
    "deepmath-103k": "train",
    "dapo-math": "train",
    "math-500": "test",
    "aime24": "train",
    "aime25": "test",
    "codeact": "codeact",
}


def fixture(name: str) -> Path:
    folder = name.replace("-", "_")
    return FIXTURES / folder / f"{FILES[name]}.jsonl"


def rows(name: str, **options) -> list[Row]:
    return [row for row in load_rows(name, {"path": fixture(name), **options}) if isinstance(row, Row)]


def test_gsm8k() -> None:
    found = rows("gsm8k")
    assert [row.answer for row in found] == ["18", "1,250", "30"]
    assert found[0].question.startswith("Tilda") and found[0].metadata == {}
    assert found[0].id == "train.jsonl:1"


def test_deepmath_does_not_read_the_long_solutions() -> None:
    first = rows("deepmath-103k")[0]
    assert first.answer == "Yes"
    assert first.metadata == {"difficulty": 3.0, "topic": "Mathematics -> Calculus -> Series"}


def test_dapo_instructions_and_duplicates_are_removed() -> None:
    found = rows("dapo-math")
    assert [(row.question, row.answer) for row in found] == [
        ("Let $n$ be the least positive integer with $n^2 > 200$. Find $n$.", "15"),
        ("How many subsets does a set of $5$ elements have?\n\nCount the empty one too.", "32"),
    ]


def test_math_500_and_aime() -> None:
    assert [row.answer for row in rows("math-500")] == ["4", r"\frac{1}{4}"]
    assert rows("math-500")[0].metadata["unique_id"] == "test/number_theory/9001.json"
    assert [row.answer for row in rows("aime24")] == ["097", "401"]
    assert [row.metadata for row in rows("aime25")] == [{"id": "0"}, {"id": "1"}]


def test_codeact_is_split_by_task_and_reports_dropped_rows() -> None:
    path = fixture("codeact")
    parts = {split: load_rows("codeact", {"path": path, "split": split}) for split in ("train", "test")}
    found = [row for part in parts.values() for row in part]
    assert len(found) == 8
    tasks = {split: {row.question for row in part if isinstance(row, Row)} for split, part in parts.items()}
    assert not tasks["train"] & tasks["test"]
    kept = {row.metadata["id"]: row for row in found if isinstance(row, Row)}
    answers = {"a1": "385", "a2": "8", "a5": "Saturday", "b1": "", "b2": "4"}
    assert {id: row.answer for id, row in kept.items()} == answers
    assert kept["b1"].metadata["tests"] == ["assert square(3) == 9"]
    assert kept["b2"].metadata["cases"] == [{"stdin": "2", "stdout": "4"}]
    dropped = {row.id: row.reason for row in found if isinstance(row, Dropped)}
    assert dropped == {
        "codeact.jsonl:3": "has no answer of one line and no checks",
        "codeact.jsonl:4": "has no answer of one line and no checks",
        "codeact.jsonl:5": "repeats the task of an earlier row",
    }


@pytest.mark.parametrize("name", FILES)
def test_parquet_folder_and_jsonl_give_the_same_rows(name: str, tmp_path: Path) -> None:
    records = [json.loads(line) for line in fixture(name).read_text().splitlines()]
    folder = tmp_path / "data"
    folder.mkdir()
    parts = {"00000-of-00002": records[:1], "00001-of-00002": records[1:]}
    columns = {name for record in records for name in record}
    table = pyarrow.Table.from_pylist([{name: record.get(name) for name in columns} for record in records])
    for part, some in parts.items():
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(some, schema=table.schema), folder / f"{FILES[name]}-{part}.parquet"
        )
    from_lines = rows(name)
    from_folder = rows(name, path=tmp_path)
    assert [(row.question, row.answer) for row in from_folder] == [(row.question, row.answer) for row in from_lines]


def test_a_folder_with_the_configuration_is_a_download_of_the_repository(tmp_path: Path) -> None:
    for config in ("main", "socratic"):
        (tmp_path / config).mkdir()
        record = {"question": f"{config}?", "answer": "#### 1"}
        (tmp_path / config / "train.jsonl").write_text(json.dumps(record))
    assert [row.question for row in rows("gsm8k", path=tmp_path)] == ["main?"]


def test_one_of_two_copies_of_a_set_is_read(tmp_path: Path) -> None:
    record = {"question": "1?", "answer": "#### 1"}
    (tmp_path / "train.jsonl").write_text(json.dumps(record))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "train-00000-of-00001.parquet")
    assert len(rows("gsm8k", path=tmp_path)) == 1


def test_the_only_file_of_a_folder_is_read_if_the_set_has_one_split(tmp_path: Path) -> None:
    records = [json.loads(line) for line in fixture("dapo-math").read_text().splitlines()]
    (tmp_path / "data").mkdir()
    published = tmp_path / "data" / "dapo-math-17k.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), published)
    (tmp_path / "README.md").touch()
    assert [row.question for row in rows("dapo-math", path=tmp_path)] == [row.question for row in rows("dapo-math")]
    published.with_stem("another").write_bytes(published.read_bytes())
    with pytest.raises(UserError, match="no file of the split 'train'"):
        rows("dapo-math", path=tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("gsm8k", {"split": "dev", "path": ""}, ["gsm8k has no split 'dev'", "train or test"]),
        ("gsm8k", {"split": "train[:3]", "path": FIXTURES / "gsm8k"}, ["no file of the split 'train[:3]'"]),
        ("codeact", {"split": "general"}, ["split", "'general'", "'train'", "'test'"]),
        ("gsm8k", {"path": "nowhere"}, ["nowhere has no file of the split 'train'", "option path"]),
        ("math-500", {"path": FIXTURES / "gsm8k" / "test.jsonl"}, ["line 1", "no column 'problem'", "HuggingFaceH4"]),
        ("aime26", {}, ["'aime26'", "aime24, aime25"]),
        ("codeact", {"path": FIXTURES / "aime25" / "test.jsonl"}, ["line 1", "no column 'conversations'"]),
    ],
)
def test_invalid_splits_and_files(name: str, options: dict, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_rows(name, options)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)
