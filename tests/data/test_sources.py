"""Files, the hub and reasoning-gym: the rows that are read, and the errors for malformed rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from megatron_sspo.data.open import load_rows
from megatron_sspo.data.row import Row
from megatron_sspo.data.sources import huggingface, jsonl, parquet, reasoning_gym
from megatron_sspo.errors import UserError

GOOD = {"question": "1+1?", "answer": "2"}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


def write_jsonl(path: Path, *records: Any) -> Path:
    """Writes one record per line: bytes unchanged, all others as JSON."""
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def write_parquet(path: Path, *records: dict[str, Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), path)
    return path


def test_jsonl(tmp_path) -> None:
    path = write_jsonl(tmp_path / "sums.jsonl", GOOD, b"  ", {"question": MESSAGES, "answer": 2, "level": 3})
    assert jsonl.rows(path) == [
        Row(id="sums.jsonl:1", question="1+1?", answer="2"),
        Row(id="sums.jsonl:3", question=MESSAGES, answer="2", metadata={"level": 3}),
    ]


def test_messages_in_other_forms_of_openai(tmp_path) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1", "name": None},
    ]
    (row,) = jsonl.rows(write_jsonl(tmp_path / "x.jsonl", {"question": messages, "answer": "2"}))
    assert row.question == [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]


def test_jsonl_with_renamed_and_nested_fields_and_a_mark(tmp_path) -> None:
    record = {"q": "é?", "reward_model": {"truth": "so #### 1 #### 1,234 "}, "solution": "<think>", "answer": None}
    path = write_jsonl(tmp_path / "x.jsonl", record)
    (row,) = jsonl.rows(path, "q", "reward_model.truth", demonstration="solution", answer_after="####")
    assert row == Row(id="x.jsonl:1", question="é?", answer="1,234", demonstration="<think>", metadata={"answer": None})


MALFORMED = [
    # record, options, the beginning and a part of the message
    (["question", "answer"], {}, "x.jsonl, line 2: ", "an object with named fields"),
    ({"answer": "2"}, {}, "x.jsonl, line 2, field 'question': ", "'answer'"),
    ({"question": "1+1?"}, {}, "x.jsonl, line 2, field 'answer': ", "option answer"),
    ({"question": "1+1?", "answer": None}, {}, "x.jsonl, line 2, field 'answer': ", "None"),
    ({"question": "1+1?", "answer": " "}, {}, "x.jsonl, line 2, field 'answer': ", "not empty"),
    (b'{"question": "1+1?", "answer": NaN}', {}, "x.jsonl, line 2, field 'answer': ", "nan"),
    (GOOD, {"answer_after": "####"}, "x.jsonl, line 2, field 'answer': ", "'####'"),
    ({**GOOD, "answer": "2 ####"}, {"answer_after": "####"}, "x.jsonl, line 2, field 'answer': ", "'####'"),
    (GOOD, {"demonstration": "solution"}, "x.jsonl, line 2, field 'solution': ", "option demonstration"),
    ({**GOOD, "solution": None}, {"demonstration": "solution"}, "row 'x.jsonl:2': ", "demonstration is None"),
    ({"question": " \n", "answer": "2"}, {}, "row 'x.jsonl:2': ", "empty"),
    ({"question": None, "answer": "2"}, {}, "row 'x.jsonl:2': ", "must be text or a list of chat messages"),
    ({"question": ["hi"], "answer": "2"}, {}, "row 'x.jsonl:2': ", "message 1"),
    ({"question": [*MESSAGES, {"role": "user"}], "answer": "2"}, {}, "row 'x.jsonl:2': ", "message 3"),
    ({"question": MESSAGES[:1], "answer": "2"}, {}, "row 'x.jsonl:2': ", "no message but the system's"),
    ({"question": [*MESSAGES, {"role": "assistant", "content": "2"}], "answer": "2"}, {}, "row", "the assistant's"),
    ({**GOOD, "tools": ["add"]}, {}, "row 'x.jsonl:2': ", "tools is ('add',)"),
]


@pytest.mark.parametrize(("record", "options", "place", "part"), MALFORMED)
def test_a_malformed_row_is_named(tmp_path, record, options, place, part) -> None:
    complete = {"question": "1+1?", "solution": "s", "answer": "#### 2"}
    with pytest.raises(UserError) as caught:
        load_rows(str(write_jsonl(tmp_path / "x.jsonl", complete, record)), options)
    message = str(caught.value)
    assert place in message and part in message and "\n" not in message, message


def test_parquet(tmp_path) -> None:
    records = [
        {"prompt": MESSAGES, "reward_model": {"ground_truth": "2", "style": "rule"}, "source": "a"},
        {"prompt": MESSAGES[1:], "reward_model": {"ground_truth": "3", "style": "rule"}, "source": "b"},
    ]
    path = write_parquet(tmp_path / "train.parquet", *records)
    style = {"reward_model": {"style": "rule"}}
    assert parquet.rows(path, question="prompt", answer="reward_model.ground_truth") == [
        Row(id="train.parquet:1", question=MESSAGES, answer="2", metadata={**style, "source": "a"}),
        Row(id="train.parquet:2", question=MESSAGES[1:], answer="3", metadata={**style, "source": "b"}),
    ]


def test_narrow_floats_are_the_decimals_that_were_written(tmp_path, monkeypatch) -> None:
    """A response of 0.1 would never be equal to a gold answer of 0.10000000149011612."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    single, half = pyarrow.float32(), pyarrow.float16()
    nested = pyarrow.struct([("half", half), ("list", pyarrow.list_(single)), ("text", pyarrow.string())])
    columns = {
        "question": pyarrow.array(["a", "b"]),
        "answer": pyarrow.array([0.1, 1e-30], single),
        "nested": pyarrow.array([{"half": 0.3, "list": [0.7, None], "text": "x"}, None], nested),
        "double": pyarrow.array([0.10000000149011612, 0.1]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "train.parquet")
    for found in (parquet.rows(tmp_path / "train.parquet"), huggingface.rows(str(tmp_path))):
        assert [row.answer for row in found] == ["0.1", "1e-30"]
        assert found[0].metadata["nested"] == {"half": 0.3, "list": [0.7, None], "text": "x"}
        assert found[0].metadata["double"] == 0.10000000149011612


def test_huggingface_reads_a_local_dataset(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "sums"
    folder.mkdir()
    write_jsonl(folder / "test.jsonl", {"question": "1+1?", "answer": "so #### 2", "n": 1}, GOOD)
    found = huggingface.rows(str(folder), "test[:1]", answer_after="####")
    assert found == [Row(id=f"{folder}/test[:1]:1", question="1+1?", answer="2", metadata={"n": 1})]
    with pytest.raises(UserError, match=r"row 2, field 'answer': nothing follows the mark"):
        huggingface.rows(str(folder), "test", answer_after="####")
    with pytest.raises(UserError, match="split='dev' cannot be loaded") as caught:
        huggingface.rows(str(folder), "dev")
    assert "\n" not in str(caught.value)


def test_huggingface_without_a_hub_names_the_remedy(monkeypatch) -> None:
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"'no-one/nothing'.*cannot be.*reached.*\.jsonl"):
        huggingface.rows("no-one/nothing")


def test_reasoning_gym_is_reproducible_by_seed() -> None:
    first = reasoning_gym.rows("chain_sum", 5, seed=3, min_terms=2, max_terms=2)
    assert first == reasoning_gym.rows("chain_sum", 5, seed=3, min_terms=2, max_terms=2)
    assert [row.question for row in first] != [row.question for row in reasoning_gym.rows("chain_sum", 5, seed=4)]
    assert [row.id for row in first] == [f"chain_sum/3:{n}" for n in range(1, 6)]
    assert all(row.question and row.answer and "difficulty" in row.metadata for row in first)


@pytest.mark.parametrize(
    ("record", "options", "metadata"),
    [
        (
            {"q": "1?", "a": {"b": {"c": 1, "d": 2}, "e": 3}},
            {"question": "q", "answer": "a.b.c"},
            {"a": {"b": {"d": 2}, "e": 3}},
        ),
        ({"q": "1?", "info": {"gold": 1}}, {"question": "q", "answer": "info.gold"}, {}),
        ({"p.t": "1?", "p": "kept", "answer": 1}, {"question": "p.t"}, {"p": "kept"}),
    ],
)
def test_a_nested_field_is_taken_out_of_the_metadata_alone(tmp_path, record, options, metadata) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(record))
    (row,) = load_rows(str(tmp_path / "x.jsonl"), options)
    assert isinstance(row, Row) and row.metadata == metadata
