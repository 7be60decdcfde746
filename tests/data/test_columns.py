"""Columns of a file as what they become: fields of a row, checks of a program, metadata."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from megatron_sspo.data.demonstration import demonstration
from megatron_sspo.data.open import load_rows
from megatron_sspo.data.row import Row
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.data.template import render
from megatron_sspo.errors import UserError
from megatron_sspo.reward.code import check_prompt
from megatron_sspo.reward.protocol import check_prompts
from tests.data.char_tokenizer import CHAT_TEMPLATE, char_tokenizer

TEXT = "def f(x): ..."
ADD = {"type": "function", "function": {"name": "add", "parameters": {"a": "int"}}}
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls %}<{{ c.function.name }}{{ c.function.arguments|tojson }}>{% endfor %}{% endfor %}"
)


def read(tmp_path: Path, *records: Any, kind: str = "jsonl", **options: Any) -> list[Row]:
    path = tmp_path / f"x.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), path)
    rows = load_rows(str(path), options)
    assert all(isinstance(row, Row) for row in rows)
    return rows  # pyright: ignore


def stream(rows: list[Row], template: str = "chat", chat_template: str = CHAT_TEMPLATE, **options: Any) -> PromptStream:
    return PromptStream(
        rows, char_tokenizer(chat_template), **{"max_tokens": 500, **options}, template=template, seed=0
    )


HUMAN_EVAL = "def check(g):\n  assert g(1)"
CASES = [{"stdin": "1\n2", "stdout": "3"}, {"stdin": "4", "stdout": "4"}]
LISTS = {"inputs": ["1\n2", "4"], "outputs": ["3", "4"]}
PAIRS = [{"input": case["stdin"], "output": case["stdout"], "testtype": "stdin"} for case in CASES]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"tests": "assert f(1)"}, {"tests": "assert f(1)"}),
        ({"test_list": ["assert f(1)", "assert f(2)"]}, {"tests": ["assert f(1)", "assert f(2)"]}),
        ({"test_list": ["assert f(1)"], "test_setup_code": "import math"}, {"tests": ["import math\nassert f(1)"]}),
        ({"test_list": ["assert f(1)"], "test_imports": ["import math"]}, {"tests": ["import math\nassert f(1)"]}),
        ({"test": HUMAN_EVAL, "entry_point": "f"}, {"tests": [f"{HUMAN_EVAL}\ncheck(f)"]}),
        ({"input_output": json.dumps(LISTS)}, {"cases": CASES}),
        ({"input_output": LISTS | {"inputs": [["1", "2"], "4"]}}, {"cases": CASES}),
        ({"public_test_cases": json.dumps(PAIRS[:1]), "private_test_cases": PAIRS[1:]}, {"cases": CASES}),
        ({"public_tests": {"input": ["1\n2", "4"], "output": ["3", "4"]}, "private_tests": []}, {"cases": CASES}),
        ({"cases": json.dumps(CASES)}, {"cases": CASES}),
    ],
)
def test_checks_of_published_sets_are_used_and_need_no_answer(tmp_path, record, expected) -> None:
    (row,) = read(tmp_path, {"question": TEXT, **record})
    assert row.answer == "" and {name: row.metadata[name] for name in expected} == expected
    assert {name: row.metadata[name] for name in record if name not in expected} == {
        name: value for name, value in record.items() if name not in expected
    }
    check_prompts(check_prompt, stream([row]).prompts)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"tests": ["import numpy\nassert f(1)"]}, "its tests import numpy, which the sandbox does not have, so every"),
        ({"tests": ["def g():\n  from yaml import x\nassert f(g())"]}, "its tests import yaml, which the sandbox"),
        ({"tests": ["try:\n  import numpy\nexcept ImportError: ...\nassert f(1)"]}, ""),
        ({"tests": ["import math\nfrom solution import f\nassert f(1)"]}, ""),
    ],
)
def test_tests_import_what_the_sandbox_has(tmp_path, record, message) -> None:
    prompts = stream(read(tmp_path, {"question": TEXT, "answer": "-", **record})).prompts
    if not message:
        check_prompts(check_prompt, prompts)
        return
    with pytest.raises(UserError, match=message):
        check_prompts(check_prompt, prompts)


def test_tests_may_import_what_the_reward_has_packages_for(tmp_path) -> None:
    prompts = stream(read(tmp_path, {"question": TEXT, "tests": ["import yaml\nassert f(1)"]})).prompts
    for options in ({"packages": ["pyyaml"]}, {"packages": ["not-installed-here"]}, {"url": "http://127.0.0.1:1"}):
        check_prompts(check_prompt, prompts, options)
    with pytest.raises(UserError, match=r"'x.jsonl:1': its tests import yaml"):
        check_prompts(check_prompt, prompts, {"packages": ["numpy"]})


@pytest.mark.parametrize(("given", "text"), [(2.0, "2"), (-0.5, "-0.5"), (1e-30, "1e-30"), (7, "7"), (True, "True")])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_answers_that_are_no_text(tmp_path, kind, given, text) -> None:
    assert read(tmp_path, {"question": "1?", "answer": given}, kind=kind)[0].answer == text


def test_rows_without_a_gold_answer_if_the_reward_needs_none(tmp_path) -> None:
    from megatron_sspo.reward import code, math

    prompts = stream(read(tmp_path, {"question": "Write a poem."}, answer="")).prompts
    assert prompts[0].answer == ""
    for reward, message in ((math.reward, "'x.jsonl:1' has no gold answer"), (code.reward, "neither tests, nor cases")):
        with pytest.raises(UserError, match=message):
            check_prompts(reward, prompts)


def calls(*arguments: Any) -> list[dict[str, Any]]:
    made = [{"type": "function", "function": {"name": "add", "arguments": one}} for one in arguments]
    return [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": None, "tool_calls": made},
        {"role": "tool", "content": "1"},
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tools_and_calls_are_rendered_as_the_row_wrote_them(tmp_path, kind) -> None:
    other = {"type": "function", "function": {"name": "look", "parameters": {"city": "str"}}}
    records = [
        {"question": calls({"expr": "3+4"}), "answer": "1", "tools": [ADD]},
        {"question": calls({"city": "Bern"}), "answer": "1", "tools": [other]},
        {"question": calls({"city": "Bern"}), "answer": "1", "tools": []},
    ]
    first, second, third = read(tmp_path, *records, kind=kind)
    tokenizer = char_tokenizer(TOOL_TEMPLATE)
    assert render(first, tokenizer, "chat")[1].endswith('<add{"expr": "3+4"}>[tool]1')
    assert json.loads(render(first, tokenizer, "chat")[1].partition("[user]")[0]) == [ADD]
    assert json.loads(render(second, tokenizer, "chat")[1].partition("[user]")[0]) == [other]
    assert render(third, tokenizer, "chat")[1].startswith("[user]1?")
    (prompt, *_) = stream([first, second, third], chat_template=TOOL_TEMPLATE).prompts
    assert list(prompt.tools) == [ADD] and "tools" not in prompt.metadata
    with pytest.raises(UserError, match="more than max_tokens=40"):  # without its tools it has less
        stream([first], chat_template=TOOL_TEMPLATE, max_tokens=40)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"a": 1}, '<add{"a": 1}>'), ('{"a": 1}', '<add{"a": 1}>'), ("", "<add{}>"), ("1, 2", '<add"1, 2">')],
)
def test_arguments_as_json_are_not_encoded_twice(tmp_path, arguments, expected) -> None:
    (row,) = read(tmp_path, {"question": calls(arguments), "answer": "1"})
    assert expected in render(row, char_tokenizer(TOOL_TEMPLATE), "chat")[1]


ONLY_WITHOUT_CONTENT = "{% for m in messages %}{{ m.tool_calls if m.content is none else m.content }}{% endfor %}"


def test_tools_and_calls_that_are_not_rendered_are_refused(tmp_path) -> None:
    """Some templates, as those of DeepSeek's distilled models, write calls only where the content is null."""
    left_out = "chat template leaves out of x.jsonl:1 the tool 'add'"
    for template, chat_template, changed, message in (
        ("chat", CHAT_TEMPLATE, {"tools": [ADD]}, left_out),
        ("chat", ONLY_WITHOUT_CONTENT, {"question": calls({"a": 1})}, f"{left_out}, or its calls"),
        ("{question}", None, {"tools": [ADD]}, "x.jsonl:1 has tools, which a format string cannot render"),
    ):
        (row,) = read(tmp_path, {"question": "1?", "answer": "1", **changed})
        with pytest.raises(UserError, match=message):
            render(row, char_tokenizer(chat_template), template)
    (row,) = read(tmp_path, {"question": "1?", "answer": "1", "tools": json.dumps([ADD])})
    assert '"add"' in render(row, char_tokenizer(TOOL_TEMPLATE), "chat")[1]


def test_a_line_for_each_set_says_what_its_columns_became(tmp_path) -> None:
    first = {"task": "1?", "gold": {"text": "1", "url": "u"}, "tools": [], "test_list": ["assert f(1)"], "level": 3}
    rows = read(tmp_path, first, first | {"year": 1}, question="task", answer="gold.text")
    line = "question ← task, answer ← gold.text, tests ← test_list, tools; metadata: gold, level, year"
    assert stream(rows).columns == [line]
    sets = {name: {"source": str(tmp_path / "x.jsonl"), "options": {"question": "task", "answer": ""}} for name in "ab"}
    (tmp_path / "x.jsonl").write_text(json.dumps({"task": "1?"}))
    mixed = load_rows("mixture", {"sets": sets})
    assert stream(mixed).columns == ["a: question ← task", "b: question ← task"]  # pyright: ignore
    assert stream([Row(id="a", question="1", answer="1")]).columns == []


@pytest.mark.parametrize(
    ("ending", "prefill"),
    [("<think>\n", "<think>\n"), ("<think>", "<think>"), ("<think></think>\n", "<think></think>\n"), ("</think>", "")],
)
def test_a_response_goes_on_where_the_prompt_has_opened_thoughts(ending: str, prefill: str) -> None:
    (prompt,) = stream([Row(id="a", question="1?", answer="7")], f"{{question}}{ending}").prompts
    assert prompt.prefill == prefill


@pytest.mark.parametrize("given", ["<think>I add.</think>", "<think>\nI add.</think>", "I add.</think>"])
def test_a_demonstration_does_not_open_thoughts_twice(given: str) -> None:
    (prompt,) = stream([Row(id="a", question="1?", answer="7", demonstration=given)], "{question}<think>\n").prompts
    tokenizer = char_tokenizer()
    (rollout,) = demonstration(prompt, tokenizer).rollouts
    assert tokenizer.decode(rollout.tokens.tolist()) == "I add.</think></s>"


def test_a_demonstration_is_a_first_call_of_a_tool(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    record = {"question": "1+1?", "answer": "2", "tools": [ADD], "worked": {"role": "assistant", "tool_calls": [call]}}
    rows = read(tmp_path, record, demonstration="worked")
    (prompt,) = stream(rows, chat_template=TOOL_TEMPLATE).prompts
    assert prompt.demonstration == '[assistant]<add{"a": 1}>'
    with pytest.raises(UserError, match="must be text, or a message of the assistant"):
        read(tmp_path, record | {"worked": {"role": "user"}}, demonstration="worked")
