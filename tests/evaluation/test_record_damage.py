"""Damaged folders of evaluations: the error names each in one sentence."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.errors import UserError
from megatron_sspo.evaluation.answers import Answer, Answers
from megatron_sspo.evaluation.record import AnswerFiles, EvaluationRecord
from megatron_sspo.evaluation.table import markdown
from megatron_sspo.types import Prompt

SPECIAL = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a loop": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}
SOUND = {"title": "A", "pass@1": 0.5, "pass@1/low": 0.25, "pass@1/high": 0.75, "reward": 1}
CONTENT = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "nested": b"[" * 100_000,
    "not UTF-8": b'{"model": "\xff"}',
    "NaN": b'{"model": "a", "sets": NaN}',
    "cut": b'{"model": "a", "se',
}


def results(**changes: Any) -> bytes:
    return json.dumps({"model": "m", "sets": {"a": SOUND | changes}}).encode()


RESULTS = CONTENT | {
    "no model": b'{"sets": {}}',
    "a model of no text": b'{"model": 3, "sets": {}}',
    "no sets": b'{"model": "m"}',
    "sets in a list": b'{"model": "m", "sets": [1]}',
    "a set of no object": b'{"model": "m", "sets": {"a": 3}}',
    "no title": json.dumps({"model": "m", "sets": {"a": {"pass@1": 0.5}}}).encode(),
    "a title of no text": results(title=None),
    "a number of text": results(reward="high"),
    "a number that is true": results(reward=True),
    "a number that is null": results(**{"pass@1": None}),
    "an interval without a number": results(**{"pass@1/low": [0]}),
    "no interval": json.dumps({"model": "m", "sets": {"a": {"title": "A", "pass@1": 0.5}}}).encode(),
    "a number without end": results(reward=10**400),
}


def placed(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def assert_one_sentence(said: str) -> None:
    assert "\n" not in said.rstrip("\n") and len(said) < 1000, said


@pytest.mark.parametrize("name", RESULTS)
def test_damaged_results(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    placed(tmp_path / "a" / "results.json", RESULTS[name])
    assert main(["table", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "results.json" in said and "remove it, and evaluate again: answers that are in the folder are kept" in said
    assert "download" not in said
    assert_one_sentence(said)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["results.json", "a/results.json"])
def test_results_that_are_not_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str) -> None:
    SPECIAL[kind](tmp_path / name.partition("/")[0])
    assert main(["table", str((tmp_path / name).parent)]) == 2
    assert_one_sentence(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (".run.lock", "a folder"),
        *itertools.product(("evaluation.json", "set/greedy.jsonl"), ("a pipe", "a folder", "a device")),
    ],
)
def test_records_that_are_not_a_file(tmp_path: Path, kind: str, name: str) -> None:
    with EvaluationRecord(tmp_path / "a", model="m", weights="w"):
        pass
    (tmp_path / "a" / "set").mkdir()
    (tmp_path / "a" / name).unlink(missing_ok=True)
    SPECIAL[kind](tmp_path / "a" / name)
    with pytest.raises(UserError) as raised, EvaluationRecord(tmp_path / "a", model="m", weights="w"):
        AnswerFiles(tmp_path / "a" / "set", [], None, 0)
    assert_one_sentence(str(raised.value))


def test_a_folder_in_use_or_of_something_else_is_refused(tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "b"
    record = EvaluationRecord(folder, model="m", weights="w")
    with record, pytest.raises(UserError, match=f"in use by another evaluation, process {os.getpid()} on"), record:
        pass
    with record:  # the lock is released, and its empty file is not taken for something else
        pass
    placed(other / "config.json", b"{}")
    with pytest.raises(UserError, match="is not the folder of an evaluation"):
        EvaluationRecord(other, model="m", weights="w").__enter__()
    assert [path.name for path in other.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "content",
    [
        *CONTENT.values(),
        b"{}",
        b'{"model": 3, "sets": {}}',
        b'{"model": {"name": "m", "weights": "w"}, "sets": []}',
        b'{"model": {"name": "m", "weights": "w"}, "sets": {"a": 3}}',
        b'{"model": {"name": "m", "weights": "w"}, "sets": {"a": {}}}',
        *(
            b'{"model": {"name": "m", "weights": "w"}, "sets": {"a": {"prompts": "1", "samples": %s}}}' % samples
            for samples in (b'"4"', b"-1", b"2.0", b"true", b"null", b"1e999")
        ),
    ],
)
def test_damaged_settings(tmp_path: Path, content: bytes) -> None:
    placed(tmp_path / "a" / "evaluation.json", content)
    for _ in range(2):  # the lock is released after an error
        with (
            pytest.raises(UserError, match=r"evaluation\.json") as raised,
            EvaluationRecord(tmp_path / "a", model="m", weights="w"),
        ):
            pass
        assert_one_sentence(str(raised.value))
        assert str(raised.value).endswith(f"remove {tmp_path / 'a'}, or choose another --output")


ANSWER = {"text": "t", "tokens": 1, "turns": 1, "finish_reason": "stop", "reward": {"answer": 1.0}}
ROW = {"id": "1", "prompt": "p", "gold": "g", "answers": [ANSWER]}


def test_a_row_round_trips() -> None:
    found = Answers.from_row(ROW)
    assert found.to_row() == ROW | {"answers": (ANSWER,)} and isinstance(found.answers[0], Answer)


@pytest.mark.parametrize(
    "row",
    [
        b"{}",
        b"[]",
        b"3",
        b"null",
        b"\0\0",
        b"\xff",
        b"[" * 100_000,
        *(
            json.dumps(ROW | {key: value}).encode()
            for key, value in {"id": 3, "prompt": None, "gold": [], "x": 1}.items()
        ),
        json.dumps(ROW).replace("1.0", "1e999").encode(),
        *(json.dumps(ROW | {"answers": value}).encode() for value in (None, [], {}, "a", [3], [{}])),
        *(
            json.dumps(ROW | {"answers": [ANSWER | change]}).encode()
            for change in (
                {"text": 3},
                {"tokens": "1"},
                {"turns": None},
                {"finish_reason": 0},
                {"reward": []},
                {"reward": {"answer": "1"}},
                {"more": 1},
            )
        ),
    ],
)
def test_damaged_answers(tmp_path: Path, row: bytes) -> None:
    (tmp_path / "greedy.jsonl").write_bytes(json.dumps(ROW).encode() + b"\n" + row + b"\n")
    with pytest.raises(UserError, match="line 2 is damaged") as raised:
        AnswerFiles(tmp_path, [], None, 0)
    assert_one_sentence(str(raised.value))


def test_another_number_of_sampled_answers(tmp_path: Path) -> None:
    (tmp_path / "sampled.jsonl").write_text(json.dumps(ROW) + "\n")
    prompts = [Prompt(id="1", tokens=(1,), answer="g")]
    with pytest.raises(UserError, match=r"sampled.jsonl has 1 answers to '1', and .* samples 2: remove the line"):
        AnswerFiles(tmp_path, prompts, None, 2)
    assert list(AnswerFiles(tmp_path, prompts, None, 1).by_id("sampled")) == ["1"]


def test_names_are_escaped_in_tables() -> None:
    assert markdown(["a|b", "c\nd"], [["e", "f"]]) == "| a\\|b | c d |\n| --- | ---: |\n| e | f |\n"
    assert markdown(["é \x1b]0;title\x07", "\x9b2J"], []) == "| é \\x1b]0;title\\x07 | \\x9b2J |\n| --- | ---: |\n"
