"""`megatron-sspo evaluate`: killed and continued, on every kind of model folder, and its errors."""

import json
import shutil
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from tests.e2e.conftest import PLUGINS, Workshop
from tests.e2e.test_command_line import one_line, rows

pytestmark = pytest.mark.slow

_EMPTY = ["--set", "evaluation.sets.sums.prompts.source=empty.jsonl"]
_SPOILT = ["--set", "evaluation.sets.sums.prompts.source=spoilt.jsonl", "--set", "evaluation.sets.sums.reward=code"]
_NO_OPTIONS = ["--set", "evaluation.sets.sums.prompts.options={}"]


def evaluate(
    made: Workshop, output: Path, *options: str, model: str = "run/model", recipe: str = "recipe"
) -> list[str]:
    named = ["--recipe", f"{made.recipe}:{recipe}", "--output", str(output), *options]
    return ["evaluate", str(made.folder / model), *named]


def holding(folder: Path, after: int) -> list[str]:
    """Returns options for a reward that a test can make wait, and for two prompts at a time."""
    reward = {"reward": f"{PLUGINS}:held", "reward_options.folder": folder, "reward_options.after": after}
    changes = {**reward, "rollouts.options.max_batch_size": 2}
    return [part for name, value in changes.items() for part in ("--set", f"{name}={value}")]


def test_an_evaluation_that_was_killed_goes_on_where_it_was(trained, tmp_path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for output in (whole, cut):
        (notes := tmp_path / f"{output.name}-notes").mkdir()
    assert main(evaluate(trained, whole, *holding(tmp_path / "whole-notes", 0))) == 0

    # 16 prompts of `sums` once and then twice: the reward waits in the second pass, with 4 of its prompts answered
    (notes / "hold").touch()
    command = evaluate(trained, cut, *holding(notes, 16 + 8))
    trained.kill_when((notes / "held").exists, *command)
    assert len(rows(cut / "sums" / "greedy.jsonl")) == 16
    answered = [row["id"] for row in rows(cut / "sums" / "sampled.jsonl")]
    assert len(answered) == 4
    assert not (cut / "results.json").exists()
    with (cut / "sums" / "sampled.jsonl").open("a") as file:  # as after a kill in the middle of a write
        file.write('{"id": "half a li')
    (notes / "hold").unlink()
    (notes / "scored").unlink()
    assert main(command) == 0
    asked = (notes / "scored").read_text().split()
    assert not set(asked[: 2 * 12]) & set(answered)
    assert len(asked) == 2 * 12  # `short` has its own reward
    for name in ("results.json", "sums/greedy.jsonl", "sums/sampled.jsonl", "short/sampled.jsonl"):
        assert (cut / name).read_text() == (whole / name).read_text(), name

    (notes / "scored").unlink()
    assert main(command) == 0
    assert not (notes / "scored").exists()  # all prompts are answered already


def test_a_run_its_checkpoint_and_its_model_are_the_same(trained, tmp_path, capsys) -> None:
    options = ["--samples", "0", "--set", "evaluation.sets=short"]
    for place, model in enumerate(("run/model", "run/checkpoints/update-000002", "run")):
        assert main(evaluate(trained, tmp_path / str(place), *options, model=model)) == 0
    first, *others = (rows(tmp_path / str(place) / "short" / "greedy.jsonl") for place in range(3))
    assert others == [first, first]

    run = shutil.copytree(trained.folder / "run", tmp_path / "unfinished")
    shutil.rmtree(run / "model")
    config = json.loads((run / "config.json").read_text())
    config["model"]["path"] = "/nowhere"  # the checkpoint has all that is needed
    (run / "config.json").write_text(json.dumps(config))
    command = ["evaluate", str(run), "--recipe", trained.recipe, *options, "--output", str(tmp_path / "3")]
    assert main(command) == 0
    assert rows(tmp_path / "3" / "short" / "greedy.jsonl") == first

    capsys.readouterr()
    assert main(["table", f"base={tmp_path / '0'}", f"trained={tmp_path / '1'}"]) == 0
    head, _, base, trained_row = capsys.readouterr().out.splitlines()
    assert head == "| Model | Short | Δ Avg |"
    assert base.startswith("| base | ") and base.endswith(" | – |")
    assert trained_row.endswith(" | +0.0 |")


def test_a_folder_keeps_to_one_model_and_one_way_of_asking(trained, tmp_path, capsys) -> None:
    output = tmp_path / "evaluation"
    short = ["--set", "evaluation.sets=short"]
    assert main(evaluate(trained, output, *short, "--samples", "0")) == 0
    other = shutil.copytree(trained.folder / "run" / "model", tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    capsys.readouterr()
    for arguments, message in (
        (
            ["evaluate", str(other), "--recipe", trained.recipe, *short, "--output", str(output)],
            "holds the answers of ",
        ),
        (
            evaluate(trained, output, *short, "--set", "evaluation.sets.short.max_tokens=3"),
            "with sampling.max_tokens 4, and this",
        ),
        (evaluate(trained, output, *short, "--set", "seed=5"), "with seed 0, and this evaluation has 5"),
        (evaluate(trained, output, *short, "--set", "evaluation.sets.short.prompts.options.size=5"), "prompts"),
        (evaluate(trained, trained.folder), "is not the folder of an evaluation: choose another --output"),
    ):
        assert main(arguments) == 2
        assert message in one_line(capsys)
    # more answers to each prompt, and another set, are no contradiction
    assert main(evaluate(trained, output, "--samples", "2")) == 0
    assert list(json.loads((output / "results.json").read_text())["sets"]) == ["short", "sums"]


def test_what_is_left_out_of_a_set_is_said_and_kept(trained, tmp_path, capsys) -> None:
    lines = [json.dumps({"question": question, "answer": "2"}) for question in ("1+1=", "12+34=", "2+2=")]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    set_ = "evaluation.sets.short"
    changes = [f"{set_}.prompts.source={tmp_path / 'x.jsonl'}", f"{set_}.prompts.options={{}}", "evaluation.sets=short"]
    changes += [f"{set_}.prompts.max_tokens=5", f"{set_}.prompts.overlong=drop"]
    command = evaluate(trained, tmp_path / "output", *(part for change in changes for part in ("--set", change)))
    for _ in range(2):
        assert main(command) == 0
        assert "short: 2 prompts; dropped 1: has more than 5 tokens" in capsys.readouterr().out
        kept = json.loads((tmp_path / "output" / "evaluation.json").read_text())["sets"]["short"]
        assert kept["dropped"] == {"has more than 5 tokens": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sets", "sums,gsm9k"], "there is no evaluation set 'gsm9k': choose one of gsm8k, math-500, aime24, "),
        ([*_EMPTY, *_NO_OPTIONS], "the evaluation set sums: the source 'empty.jsonl' has no rows"),
        ([*_SPOILT, *_NO_OPTIONS], "the evaluation set sums: prompt 'spoilt.jsonl:1': a test is not Python"),
        (["--set", "evaluation.sets=long"], "'long': choose from sums, short"),
        (["--set", "rollouts.engine=nobody"], "there is no engine named 'nobody'"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing_behind(trained, tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "spoilt.jsonl").write_text('{"question": "1+1=", "answer": "2", "tests": "assert f( == 2"}')
    assert main(evaluate(trained, tmp_path / "output", *options)) == 2
    assert message in one_line(capsys)
    assert not (tmp_path / "output").exists()


def test_what_holds_no_model(trained, tmp_path, capsys) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(trained.folder / "run" / "config.json", begun)
    for model, message in ((tmp_path / "nowhere", "there is no folder"), (begun, "has no model and no checkpoint yet")):
        assert main(["evaluate", str(model), "--recipe", trained.recipe, "--output", str(tmp_path / "x")]) == 2
        assert message in one_line(capsys)
    assert main(["table", str(tmp_path)]) == 2
    assert "it is not an evaluation's folder" in one_line(capsys)
