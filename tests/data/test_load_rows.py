import json
from typing import Any

import pytest

from megatron_sspo.data.open import load_rows
from megatron_sspo.data.row import Row
from megatron_sspo.errors import UserError


def my_rows(size: int) -> list[Row]:
    return [Row(id=str(n), question="?", answer="!") for n in range(size)]


def test_a_path_a_short_name_and_a_module_attribute(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"q": "1+1?", "answer": 2}))
    assert load_rows(str(path), {"question": "q"}) == [Row(id="x.jsonl:1", question="1+1?", answer="2")]
    assert load_rows("jsonl", {"path": str(path), "question": "q"}) == load_rows(str(path), {"question": "q"})
    assert len(load_rows("arithmetic", {"size": 3})) == 3
    assert len(load_rows("reasoning_gym", {"task": "chain_sum", "size": 2, "min_terms": 2})) == 2
    assert len(load_rows("tests.data.test_load_rows:my_rows", {"size": 4})) == 4


ROW = {"id": "a", "question": "?", "answer": "!"}


MADE: list[tuple[Any, str]] = [
    (None, "returned None: let it return a list of rows"),
    ([ROW], "gave {'answer': '!', 'id': 'a', 'question': '?'} as a row: let it give Rows"),
    ([Row(**ROW | {"id": 1})], "row 1: id is 1, and must be text"),
    ([Row(**ROW | {"answer": 2})], "row 'a': answer is 2, and must be text"),
    ([Row(**ROW, demonstration=5)], "row 'a': demonstration is 5, and must be text"),
]


def made(number: int) -> Any:
    return MADE[number][0]


@pytest.mark.parametrize("number", range(len(MADE)))
def test_rows_of_a_source_of_ones_own_that_are_none(number: int) -> None:
    with pytest.raises(UserError) as caught:
        load_rows(f"{__file__}:made", {"number": number})
    assert "test_load_rows.py:made'" in str(caught.value) and MADE[number][1] in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("source", "options", "parts"),
    [
        ("missing.jsonl", {}, ["missing.jsonl", "No such file"]),
        ("nowhere", {}, ["'nowhere'", "arithmetic", "huggingface, jsonl"]),
        ("some-owner/set", {}, ["'some-owner/set' is neither", "set source to 'huggingface' and its option name"]),
        ("/data/some-set.csv", {}, ["'/data/some-set.csv' is neither", "ends in .jsonl or .parquet", "convert a file"]),
        ("arithmetic", {"sise": 3}, ["no option sise", "size, seed, split, max_operand, wrong_fraction"]),
        ("tests.data.test_load_rows:my_rows", {"seed": 4}, ["test_load_rows:my_rows'", "no option seed", "size"]),
        ("verifiers", {"environment": {"taskset": "gsm8k"}}, ["environment of verifiers cannot be opened"]),
    ],
)
def test_invalid_sources_and_options(source, options, parts) -> None:
    with pytest.raises(UserError) as caught:
        load_rows(source, options)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
