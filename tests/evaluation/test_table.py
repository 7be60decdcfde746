"""The paper's table."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from megatron_sspo.evaluation.answers import Answer, Answers, before_and_after, compute_metrics
from sspo_lab.evaluations import Result, evaluations_table, paper_table
from sspo_lab.table import markdown


def of(*correct: bool) -> list[Answers]:
    reward = ({"answer": 0.0, "format": 1.0}, {"answer": 1.0, "format": 1.0})
    return [
        Answers(
            id=str(place),
            prompt="",
            gold="",
            answers=(Answer(text="", tokens=3, turns=1, finish_reason="stop", reward=reward[value]),),
        )
        for place, value in enumerate(correct)
    ]


def result(model: str, gsm8k: list[Answers], aime: list[Answers] | None = None) -> Result:
    sets = {"gsm8k": compute_metrics(gsm8k, [])} | ({"aime25": compute_metrics(aime, [])} if aime else {})
    return Result(model=model, sets=sets, titles={"gsm8k": "GSM8K", "aime25": "A25"})


BASE = result("base", of(True, False, False, False), of(False, False))
TRAINED = result("+ SSPO", of(True, True, True, False), of(True, False))


def test_models_are_rows_and_sets_columns_with_the_mean_gain_last() -> None:
    assert markdown(*paper_table([BASE, TRAINED])) == (
        "| Model | GSM8K | A25 | Δ Avg |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| base | 25.0 (4.6–69.9) | 0.0 (0.0–65.8) | – |\n"
        "| + SSPO | 75.0 (30.1–95.4) | 50.0 (9.5–90.5) | +50.0 |\n"
    )


def test_one_model_has_no_gain_column_and_a_missing_set_is_a_dash() -> None:
    assert paper_table([BASE])[0] == ["Model", "GSM8K", "A25"]
    head, rows = paper_table([BASE, result("half", of(True))])
    assert head[-1] == "Δ Avg"
    assert rows[1][2:] == ["–", "–"]


def test_sampled_measures_have_rows_of_their_own() -> None:
    four = [Answers(id="1", prompt="", gold="", answers=tuple(a.answers[0] for a in of(True, False, False, False)))]
    sampled = Result(model="m", sets={"gsm8k": compute_metrics(of(True), four)}, titles={"gsm8k": "GSM8K"})
    head, rows = paper_table([sampled])
    assert head == ["Model", "Measure", "GSM8K"]
    assert [(row[1], row[2].split()[0]) for row in rows] == [
        ("pass@1", "100.0"),
        ("avg@4", "25.0"),
        ("pass@4", "100.0"),
    ]
    assert sampled.sets["gsm8k"]["pass@2"] == 0.5


def test_before_and_after_a_run() -> None:
    first, last = ({f"gsm8k/{key}": v for key, v in r.sets["gsm8k"].items()} for r in (BASE, TRAINED))
    assert before_and_after(first, last, "gsm8k")[:2] == [
        ("pass@1", "0.250 (0.046-0.699)", "0.750 (0.301-0.954)"),
        ("format_rate", "1.000", "1.000"),
    ]


SAMPLING = {"max_tokens": 512, "temperature": 1.0}


def write(folder: Path, model: str, **settings: Any) -> Path:
    """Writes the folder of an evaluation of gsm8k and aime25; the settings change those of gsm8k."""
    folder.mkdir()
    sets = {name: {**metrics, "title": name} for name, metrics in asdict(BASE)["sets"].items()}
    (folder / "results.json").write_text(json.dumps({"model": model, "sets": sets}))
    own = {"prompts": "2", "reward": "math", "environment": "", "sampling": SAMPLING, "samples": 0}
    content = {"model": {"name": model, "weights": "w"}, "sets": {"gsm8k": own | settings, "aime25": own}}
    (folder / "evaluation.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"prompts": "3"}, "prompts"),
        ({"reward": "mine", "environment": "codeact"}, "reward, environment"),
        ({"sampling": SAMPLING | {"max_tokens": 64}}, "sampling.max_tokens"),
        ({"agent": "a"}, "agent"),
        ({"engine": "sglang", "seed": 3, "sampling": SAMPLING | {"temperature": 0.5}}, ""),  # no answer was sampled
    ],
)
def test_evaluations_under_other_settings_are_named_and_have_no_gain(
    tmp_path: Path, settings: dict[str, Any], fields: str
) -> None:
    folders = [write(tmp_path / "a", "a"), write(tmp_path / "b", "b", **settings)]
    lines = evaluations_table([*map(str, folders)]).splitlines()
    assert lines[3].endswith("| – |" if fields else "| +0.0 |")
    said = f"gsm8k: b and a have different {fields}, so their numbers do not compare the models alone"
    assert lines[4:] == (["", said] if fields else [])


def test_a_model_without_a_row_is_named(tmp_path) -> None:
    sets = {"sums": {"title": "Sums", "reward": 0.5}}
    (tmp_path / "results.json").write_text(json.dumps({"model": "dense", "sets": sets}))
    table, line = evaluations_table([str(tmp_path)]).split("\n\n")
    assert table == "| Model | Sums |\n| --- | ---: |" and line.startswith("dense has no row: the rewards of its sets")


def test_a_folder_with_an_equals_sign_in_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "sweep-objective=sspo,seed=0", "own")  # the evaluation of a sweep's run
    lines = evaluations_table([folder.name, f"renamed={folder.name}"]).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["own", "renamed"]
