import json

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
        ("arithmetic", {"sise": 3}, ["no option sise", "size, seed, split, max_operand, wrong_fraction"]),
        ("arithmetic", {}, ["needs the option size"]),
        ("missing.jsonl", {"fields": "q"}, ["no option fields", "question, answer"]),
        ("tests.data.test_load_rows:my_rows", {"seed": 4}, ["test_load_rows:my_rows'", "no option seed", "size"]),
        ("reasoning_gym", {"size": 4}, ["needs the option task"]),
        ("verifiers", {"environment": {"taskset": "gsm8k"}}, ["environment of verifiers cannot be opened"]),
    ],
)
def test_invalid_sources_and_options(source, options, parts) -> None:
    with pytest.raises(UserError) as caught:
        load_rows(source, options)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
