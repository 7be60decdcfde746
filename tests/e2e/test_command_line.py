"""The files that a run leaves behind, and the commands that use them."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatron_sspo.__main__ import main
from tests.rows import rows, sets

pytestmark = pytest.mark.slow


def test_a_whole_run_leaves_its_numbers_and_a_model_that_transformers_loads(whole_run) -> None:
    made, layout = whole_run
    run = made.folder / "run"
    names = {path.name for path in run.iterdir()}
    assert names == {
        ".run.lock",
        "config.json",
        "metrics.jsonl",
        "evaluations.jsonl",
        "evaluation_responses.jsonl",
        "rollouts.jsonl",
        "curves.png",
        "log.txt",
        "model",
        "initial_model",
        "checkpoints",
    }
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run / "config.json").read_text())["parallel"]["expert"] == (2 if layout == "experts" else 1)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"update-00000{n}" for n in (3, 4, 5, 6)]
    model, info = AutoModelForCausalLM.from_pretrained(run / "model", output_loading_info=True)
    assert not any(info.values()), info
    tokens = AutoTokenizer.from_pretrained(run / "model")("1+2=", return_tensors="pt")["input_ids"]
    assert torch.isfinite(model(tokens).logits).all()


def test_what_is_left_out_of_the_prompts_is_said_and_listed(workshop) -> None:
    sums = {"train": ["1+1=", "1+2=", "1+3=", "12+34=", "2+2="], "test": ["1 + 1 =", "2+1="]}
    for name, questions in sums.items():
        lines = [json.dumps({"question": question, "answer": "1"}) for question in questions]
        (workshop.folder / f"{name}.jsonl").write_text("\n".join(lines))
    (workshop.folder / "recipe.py").write_text(
        (workshop.folder / "recipe.py").read_text()
        + """

def overlapping() -> Run:
    test = Prompts(source=str(HERE / "test.jsonl"), template="{question}", max_tokens=8)
    train = replace(test, source=str(HERE / "train.jsonl"), max_tokens=5, overlong="drop", without=(test,))
    held_out = replace(train, without=())
    evaluation = Evaluation(sets={"again": HeldOut(prompts=held_out)})
    return replace(bare(), num_updates=2, prompts=train, evaluation=evaluation)
"""
    )
    finished = workshop.run("train", f"{workshop.recipe}:overlapping")
    assert finished.returncode == 0, finished.stderr
    assert rows(workshop.folder / "run" / "dropped_prompts.jsonl") == [
        {"id": "train.jsonl:1", "reason": "repeats an evaluation question", "detail": "the text of test.jsonl:1"},
        {"id": "train.jsonl:4", "reason": "has more than 5 tokens", "detail": "6 tokens"},
    ]
    said = (workshop.folder / "run" / "log.txt").read_text()
    assert "3 prompts; dropped 1: repeats an evaluation question, 1: has more than 5 tokens" in said
    assert "4 prompts of the evaluation set again; dropped 1: has more than 5 tokens" in said
    assert "3 of the 4 prompts of the evaluation set again are also trained on" in said


def test_evaluate_and_plot(whole_run, tmp_path, capsys) -> None:
    made, layout = whole_run
    if layout == "experts":
        pytest.skip("the same model")
    model, answers = made.folder / "run" / "model", tmp_path / "answers"
    recipe = ["--recipe", made.recipe]
    assert main(["evaluate", str(model), *recipe, "--output", str(answers)]) == 0
    out = capsys.readouterr().out
    assert "pass@1" in out and "avg@2" in out
    while_training = rows(made.folder / "run" / "evaluation_responses.jsonl")
    for name, count in (("sums", 16), ("short", 4)):
        answered = rows(answers / name / "greedy.jsonl")
        assert len(answered) == count
        assert [{"set": name, **row} for row in answered] == [row for row in while_training if row["set"] == name]
    last = rows(made.folder / "run" / "evaluations.jsonl")[-1]
    found = json.loads((answers / "results.json").read_text())["sets"]
    assert {f"{name}/{key}": value for name in found for key, value in found[name].items() if key != "title"} == {
        key: value for key, value in last.items() if key != "update"
    }
    assert {"sums/pass@1", "sums/avg@2/low", "short/pass@1", "short/truncated"} <= set(last)
    assert rows(answers / "short" / "greedy.jsonl")[0]["answers"][0]["tokens"] <= 4
    assert main(["plot", str(made.folder / "run"), "--output", str(tmp_path / "x.png")]) == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert main(["evaluate", str(tmp_path / "nowhere"), *recipe]) == 2
    assert main(["plot", str(tmp_path / "nowhere")]) == 2


def one_line(capsys) -> str:
    captured = capsys.readouterr()
    assert captured.err.startswith("megatron-sspo: ")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (sets("prompts.max_tokens=3"), "raise prompts.max_tokens to"),
        (sets("model.path=/nowhere"), "/nowhere has no config.json: set model.path to a Hugging Face folder"),
        (sets("model.init=pretrained"), "holds no safetensors"),
        (["--resume", "/nowhere"], "/nowhere is not the folder of a run"),
        (["--rollouts", "examples"], "examples has no folder rollouts: name the folder of a run of train --generate"),
        (["--generate", "--resume", "examples"], "--generate begins a run of its own"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing_behind(workshop, capsys, arguments, message) -> None:
    assert main(["train", workshop.recipe, *arguments]) == 2
    assert message in one_line(capsys)
    assert not (workshop.folder / "run").exists()


def test_a_malformed_row_is_named_by_file_line_and_field(workshop, capsys) -> None:
    data = workshop.folder / "sums.jsonl"
    data.write_text('{"question": "1+1=", "answer": "2"}\n{"question": "1+2=", "answer": null}\n')
    assert main(["train", f"{workshop.recipe}:bare", *sets(f"prompts.source={data}", "prompts.options={}")]) == 2
    assert f"{data}, line 2, field 'answer'" in one_line(capsys)
    assert not (workshop.folder / "run").exists()


def test_a_model_without_one_of_its_tensors(trained, tmp_path, capsys) -> None:
    model = shutil.copytree(trained.folder / "run" / "model", tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    other = sets(f"model.path={model}", "model.init=pretrained", "name=other")
    assert main(["train", f"{trained.recipe}:bare", *other]) == 2
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in one_line(capsys)


@pytest.mark.parametrize("reward", ["reward=code", "evaluation.sets.short.reward=code"])
def test_a_row_that_its_reward_cannot_judge_is_found_before_a_run_or_an_evaluation(workshop, capsys, reward) -> None:
    row = {"question": "1+1=", "answer": "2", "tests": "assert f( == 2"}
    spoilt = workshop.folder / "spoilt.jsonl"
    spoilt.write_text(json.dumps(row))
    place = "prompts" if reward == "reward=code" else "evaluation.sets.short.prompts"
    changes = [reward, f"{place}.source={spoilt}", f"{place}.options={{}}", "evaluation.sets.short.reward_options={}"]
    assert main(["train", workshop.recipe, *sets(*changes)]) == 2
    where = "the evaluation set short: " if place != "prompts" else ""
    assert f"megatron-sspo: {where}prompt 'spoilt.jsonl:1': a test is not Python" in one_line(capsys)
    assert not (workshop.folder / "run").exists()
