"""Files of the kinds that users of TRL, verl and OpenRLHF have go in with options alone; and which records do."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from megatron_sspo.data.open import load_rows
from megatron_sspo.data.row import Dropped, Row, count_dropped
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.reward.code import read_checks
from megatron_sspo.reward.math import reward
from tests.data.char_tokenizer import char_tokenizer

CHAT = [{"role": "system", "content": "Box it."}, {"role": "user", "content": "1/4+1/4?"}]
TESTS = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}


def verl(truth: Any, source: str = "math") -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": CHAT,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": 0},
    }


def write(path: Path, *records: Any) -> str:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), path)
    else:
        path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records))
    return str(path)


FILES = {
    "verl_math.parquet": (
        verl("\\frac12"),
        {"question": "prompt", "answer": "reward_model.ground_truth"},
        "I think \\boxed{1}, no: \\boxed{\\frac{2}{4}}.",
        {"answer_in": "boxed"},
    ),
    "verl_gsm8k.parquet": (
        {
            **verl("1000", "openai/gsm8k"),
            "extra_info": {"answer": "10 * 100 = <<10*100=1000>>1000\n#### 1,000", "index": 0},
        },
        {"question": "prompt", "answer": "reward_model.ground_truth"},
        "10 * 100 = 1000, not 8.\n#### 1,000",
        {"answer_in": "####"},
    ),
    "gsm8k_rows_of_verl.parquet": (
        {**verl(""), "extra_info": {"answer": "10 * 100 = <<10*100=1000>>1000\n#### 1,000", "index": 0}},
        {"question": "prompt", "answer": "extra_info.answer", "answer_after": "####"},
        "<think>8 or 1000?</think> It is 1000.",
        {"answer_in": "last_number"},
    ),
    "verl_code.parquet": (
        verl(json.dumps(TESTS), "taco"),
        {"question": "prompt", "answer": "", "cases": "reward_model.ground_truth"},
        "",
        None,
    ),
    "trl.jsonl": (
        {"prompt": CHAT, "solution": "The sum is $\\boxed{\\frac{1}{2}}$."},
        {"question": "prompt", "answer": "solution"},
        "<think>\\boxed{3}</think>0.5, so \\boxed{0.5}",
        {"answer_in": "boxed"},
    ),
    "openrlhf.jsonl": (
        {"input": "1/4+1/4?", "label": ["1/2", "50%"]},
        {"question": "input", "answer": "label"},
        "4 quarters, of which 2: 50%\n#### 50%\nDone.",
        {"answer_in": "####"},
    ),
    "openrlhf_chat.jsonl": (
        {"context_messages": CHAT, "label": 1000.5, "datasource": "sums"},
        {"question": "context_messages", "answer": "label"},
        "We get 12 at first, and then 1,000.50.",
        {"answer_in": "last_number"},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_go_in_with_options_alone(tmp_path: Path, name: str) -> None:
    record, options, response, rewarded = FILES[name]
    rows = load_rows(write(tmp_path / name, record), options)
    (prompt,) = PromptStream(rows, char_tokenizer(), template="chat", max_tokens=500, seed=0).prompts
    assert prompt.messages[-1]["content"] == "1/4+1/4?"
    if rewarded is None:
        assert [(case.stdin, case.stdout) for case in read_checks(prompt)[1]] == [("1 2", "3"), ("3 4", "7")]
        return
    judge = reward(num_workers=1, **rewarded)
    try:
        assert judge.score([prompt, prompt], [response, "No idea: \\boxed{8} #### 8"]) == [
            {"answer": 1.0},
            {"answer": 0.0},
        ]
    finally:
        judge.close()


def test_an_answer_that_is_not_marked_is_wrong() -> None:
    (row,) = [Row(id="a", question="?", answer="5")]
    (prompt,) = PromptStream([row], char_tokenizer(), template="{question}", max_tokens=500, seed=0).prompts
    responses = {"boxed": "5 \\boxed{5", "####": "5", "last_number": "five", "tags": "\\boxed{5}"}
    for answer_in, response in responses.items():
        (parts,) = reward(exact=True, answer_in=answer_in).score([prompt], [response])  # pyright: ignore
        assert parts["answer"] == 0 and ("format" in parts) == (answer_in == "tags")


@pytest.mark.parametrize("prefill", ["", "<think>\n"])
@pytest.mark.parametrize(("answer_in", "five"), [("boxed", "\\boxed{5}"), ("####", "#### 5"), ("last_number", "5")])
def test_a_thought_that_is_not_closed_has_no_answer(prefill: str, answer_in: str, five: str) -> None:
    (row,) = [Row(id="a", question="?", answer="5")]
    template = "{question}" + prefill
    (prompt,) = PromptStream([row], char_tokenizer(), template=template, max_tokens=500, seed=0).prompts
    assert prompt.prefill == prefill
    opened = "" if prefill else "<think>"
    responses = {
        f"{opened}It is {five}": 0,
        f"{opened}It is {five}</think>": 0,
        f"{opened}8?</think> It is {five}": 1,
        f"{opened}8?</think> {five}\n<think>Or 8: \\boxed{{8}} #### 8": 1,
    }
    parts = reward(exact=True, answer_in=answer_in).score([prompt] * len(responses), list(responses))  # pyright: ignore
    assert [found["answer"] for found in parts] == list(responses.values())


GOOD = {"question": "1+1?", "answer": "2"}


def test_bad_records_are_left_out_up_to_a_number(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", GOOD, '{"cut', {"question": "?"}, {"question": " ", "answer": "1"}, GOOD)
    rows = load_rows(path, {"bad_rows": 3})
    assert [row.id for row in rows if isinstance(row, Row)] == ["x.jsonl:1", "x.jsonl:5"]
    assert count_dropped(row for row in rows if isinstance(row, Dropped)).startswith(
        f"3: is a bad record (the first: {path}, line 2: not JSON in UTF-8"
    )
    with pytest.raises(UserError, match=r"3 records are bad, and bad_rows is 2; the first: .*line 2: not JSON"):
        load_rows(path, {"bad_rows": 2})
    with pytest.raises(UserError, match=r"^[^ ]*x.jsonl, line 2: not JSON"):
        load_rows(path, {})


def test_folders_patterns_and_lists_of_files(tmp_path: Path) -> None:
    for name in ("a/x.jsonl", "b/x.jsonl", "b/y.jsonl"):
        write(tmp_path / name, GOOD)
    ids = {
        f"{tmp_path}/": ["a/x.jsonl:1", "b/x.jsonl:1", "b/y.jsonl:1"],
        f"{tmp_path}/*/x.jsonl": ["a/x.jsonl:1", "b/x.jsonl:1"],
        f"{tmp_path}/b": ["x.jsonl:1", "y.jsonl:1"],
    }
    for source, expected in ids.items():
        assert [row.id for row in load_rows(source, {})] == expected
    both = {"path": [f"{tmp_path}/b/y.jsonl", f"{tmp_path}/a/x.jsonl"]}
    assert [row.id for row in load_rows("jsonl", both)] == ["b/y.jsonl:1", "a/x.jsonl:1"]
    with pytest.raises(UserError, match=r"there is no .jsonl file at .*none"):
        load_rows(f"{tmp_path}/none*.jsonl", {})


def test_rows_by_the_value_of_a_column(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", *(verl("1", source) for source in ("gsm8k", "aime", "amc")))
    options = {"question": "prompt", "answer": "reward_model.ground_truth"}
    for where, expected in (
        ({"data_source": "aime"}, [2]),
        ({"data_source": ["gsm8k", "amc"], "extra_info.split": "train"}, [1, 3]),
    ):
        rows = load_rows(path, {**options, "where": where})
        assert [row.id for row in rows] == [f"x.parquet:{number}" for number in expected]
    with pytest.raises(UserError, match="name the right field by the option where"):
        load_rows(path, {**options, "where": {"set": "aime"}})
