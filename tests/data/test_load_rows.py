import itertools
import json
import math
import types
from collections.abc import Iterator
from typing import Any

import pytest

from megatron_sspo.config.resolve import short_names
from megatron_sspo.data.load import load_rows
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


async def no_coroutine() -> None: ...


MADE: list[tuple[Any, str]] = [
    (None, "returned None: let it return a list of rows"),
    (no_coroutine, "returned a coroutine: let it return a list of rows, without async"),
    ([ROW], "gave {'answer': '!', 'id': 'a', 'question': '?'} as a row: let it give Rows"),
    (["1+1="], "gave '1+1=' as a row: let it give Rows"),
    ([Row(**ROW | {"id": 1})], "row 1: id is 1, and must be text"),
    ([Row(**ROW | {"answer": 2})], "row 'a': answer is 2, and must be text"),
    ([Row(**ROW | {"answer": None})], "row 'a': answer is None, and must be text"),
    ([Row(**ROW | {"question": 1})], "row 'a': a question must be text or a list of chat messages"),
    ([Row(**ROW | {"question": [{"role": "user"}]})], "row 'a': message 1 must be an object with the texts 'role'"),
    ([Row(**ROW | {"question": []})], "row 'a': the question is an empty list of messages"),
    ([Row(**ROW | {"question": "\ud800"})], "row 'a': the text has half of a surrogate pair"),
    ([Row(**ROW, demonstration=5)], "row 'a': demonstration is 5, and must be text"),
    ([Row(**ROW, metadata={"n": 10**5000})], "row 'a': the row cannot be compared with that of a resumed run, or sent"),
    (
        [Row(**ROW, metadata={"check": lambda r: r})],
        "row 'a': the row cannot be compared with that of a resumed run, or sent",
    ),
    (
        [Row(**ROW, metadata=types.MappingProxyType({"a": 1}))],
        "row 'a': the row cannot be compared with that of a resumed run, or sent",
    ),
    ([Row(**ROW | {"question": [{"role": "user", "content": " "}]})], "the question is empty: no message but the"),
    ([Row(**ROW | {"question": [{"role": "system", "content": "Be brief."}]})], "no message but the system's has text"),
    ([Row(**ROW | {"question": [{"role": "", "content": "hi"}]})], "message 1 has an empty role"),
    ([Row(**ROW, metadata=None)], "row 'a': metadata is None, and must be a dict"),
    ([Row(**ROW, share=math.nan)], "row 'a': share is nan, and must be a number from 0 to"),
    ([Row(**ROW, share=-1.0)], "row 'a': share is -1.0, and must be a number from 0 to"),
]


def made(number: int) -> Any:
    found = MADE[number][0]
    return found() if callable(found) else found


@pytest.mark.parametrize("number", range(len(MADE)))
def test_rows_of_a_source_of_ones_own_that_are_none(number: int) -> None:
    with pytest.raises(UserError) as caught:
        load_rows(f"{__file__}:made", {"number": number})
    assert "test_load_rows.py:made'" in str(caught.value) and MADE[number][1] in str(caught.value), str(caught.value)


def endless() -> Iterator[Row]:
    yield from itertools.cycle(my_rows(3))


def finite(size: int) -> Iterator[Row]:
    yield from my_rows(size)


def test_a_generator_of_ones_own_has_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron_sspo.data.load._MOST_OF_A_GENERATOR", 10)
    with pytest.raises(UserError, match=r"load_rows:endless' has given 10 rows and goes on: let it end, or return a l"):
        load_rows("tests.data.test_load_rows:endless", {})
    assert len(load_rows("tests.data.test_load_rows:finite", {"size": 10})) == 10
    assert len(load_rows("tests.data.test_load_rows:my_rows", {"size": 20})) == 20


def test_the_short_names_are_the_sources() -> None:
    forms = {"arithmetic", "huggingface", "jsonl", "mixture", "parquet", "reasoning_gym", "verifiers"}
    named = {"aime24", "aime25", "codeact", "dapo_math", "deepmath_103k", "gsm8k", "math_500"}
    assert set(short_names("data/sources", "rows")) == forms | named


@pytest.mark.parametrize(
    ("source", "options", "parts"),
    [
        ("missing.jsonl", {}, ["there is no file missing.jsonl"]),
        ("missing.parquet", {}, ["there is no file missing.parquet"]),
        ("nowhere", {}, ["'nowhere'", "arithmetic", "huggingface, jsonl"]),
        ("some-owner/set", {}, ["'some-owner/set' is neither", "set source to 'huggingface' and its option name"]),
        ("/data/some-set.csv", {}, ["'/data/some-set.csv' is neither", "ends in .jsonl or .parquet", "convert a file"]),
        ("rows.JSONL", {}, ["'rows.JSONL' is neither the name of a set nor a file that ends in .jsonl"]),
        ("arithmetic", {"sise": 3}, ["no option sise", "size, seed, split, max_operand, wrong_fraction"]),
        ("arithmetic", {}, ["needs the option size"]),
        ("a.jsonl", {"path": "b.jsonl"}, ["the source is the file 'a.jsonl', and the option path 'b.jsonl'"]),
        ("missing.jsonl", {"fields": "q"}, ["no option fields", "question, answer"]),
        ("tests.data.test_load_rows:my_rows", {"seed": 4}, ["test_load_rows:my_rows'", "no option seed", "size"]),
        ("/dev/stdin.jsonl", {"fields": "q"}, ["the source '/dev/stdin.jsonl' has no option fields"]),
        ("reasoning_gym", {"size": 4}, ["needs the option task"]),
        ("verifiers", {"environment": {"taskset": "gsm8k"}}, ["environment of verifiers cannot be opened"]),
    ],
)
def test_invalid_sources_and_options(source, options, parts) -> None:
    with pytest.raises(UserError) as caught:
        load_rows(source, options)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("def check_values(scale=1.0): raise ValueError('never called')", ""),  # it is that of the reward in this file
        ("def check_values(largest): raise ValueError('too large')", "too large"),
        ("def check_values(largest, scale): pass", "missing 1 required"),
        ("def check_values(**options): raise ValueError('too large')", "too large"),
    ],
)
def test_the_check_of_a_file_is_for_the_plug_ins_with_its_options(tmp_path, check: str, message: str) -> None:
    row = "Row(id='a', question='1?', answer='1')"
    source = f"from megatron_sspo.data.row import Row\ndef rows(largest=3): return [{row}]\n{check}\n"
    (tmp_path / "one.py").write_text(source)
    if not message:
        assert len(load_rows(f"{tmp_path}/one.py:rows", {"largest": 2})) == 1
        return
    with pytest.raises(UserError, match=message):
        load_rows(f"{tmp_path}/one.py:rows", {"largest": 2})
