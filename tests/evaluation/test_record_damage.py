"""Damaged folders of evaluations: the error names each in one sentence."""

import json
import os
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.errors import UserError
from megatron_sspo.evaluation.answers import Answer, Answers
from megatron_sspo.evaluation.record import AnswerFiles, EvaluationRecord
from sspo_lab.table import markdown

DAMAGE = {
    "empty": b"",
    "cut": b'{"model": "a", "se',
}


def placed(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_damaged_results_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    placed(tmp_path / "a" / "results.json", content)
    assert main(["table", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "results.json" in said and "remove it, and evaluate again: answers that are in the folder are kept" in said
    assert said.count("\n") == 1

    placed(tmp_path / "b" / "evaluation.json", content)
    for _ in range(2):  # the lock is released after an error
        remedy = f"remove {tmp_path / 'b'}, or choose another --output"
        with pytest.raises(UserError, match=remedy), EvaluationRecord(tmp_path / "b", model="m", weights="w"):
            pass


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


ANSWER = {"text": "t", "tokens": 1, "turns": 1, "finish_reason": "stop", "reward": {"answer": 1.0}}
ROW = {"id": "1", "prompt": "p", "gold": "g", "answers": [ANSWER]}


@pytest.mark.parametrize(
    "row",
    [b"{}", b"\xff", json.dumps(ROW).encode()[1:]],
)
def test_damaged_answers(tmp_path: Path, row: bytes) -> None:
    (tmp_path / "greedy.jsonl").write_bytes(json.dumps(ROW).encode() + b"\n" + row + b"\n")
    with pytest.raises(UserError, match="line 2 is damaged"):
        AnswerFiles(tmp_path, [], None, 0)
    found = Answers.from_row(ROW)
    assert found.to_row() == ROW | {"answers": (ANSWER,)} and isinstance(found.answers[0], Answer)


def test_names_are_escaped_in_tables() -> None:
    assert markdown(["a|b", "c\nd"], [["e", "f"]]) == "| a\\|b | c d |\n| --- | ---: |\n| e | f |\n"
    assert markdown(["é \x1b]0;title\x07", "\x9b2J"], []) == "| é \\x1b]0;title\\x07 | \\x9b2J |\n| --- | ---: |\n"
