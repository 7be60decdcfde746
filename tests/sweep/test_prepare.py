"""Building a checked sweep from the command line's arguments."""

import json
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.errors import UserError
from megatron_sspo.sweep.folder import write_sweep
from megatron_sspo.sweep.prepare import prepare, start_from_overrides

RECIPE = str(Path(__file__).parents[2] / "examples" / "tiny_moe.py")
VARY = ("objective=[sspo(), gspo()]", "updates_per_sync=[2, 8]")


def test_every_run_has_its_values(tmp_path) -> None:
    found = prepare(RECIPE, ["num_updates=4"], VARY, 2, output=tmp_path / "x")
    assert list(found.runs) == found.sweep.order and len(found.runs) == 8
    run = found.runs["objective=gspo,updates_per_sync=8,seed=1"]
    assert (run.updates_per_sync, run.seed, run.num_updates) == (8, 1, 4)
    assert (run.output, run.name) == (str(tmp_path / "x"), "objective=gspo,updates_per_sync=8,seed=1")
    assert run.objective != found.runs["objective=sspo,updates_per_sync=8,seed=1"].objective
    assert found.sweep.recipe == RECIPE and not (tmp_path / "x").exists()


def test_more_runs_than_any_sweep_has(tmp_path) -> None:
    with pytest.raises(UserError, match="the sweep has 400,000,000,000 runs, more than 100,000: give fewer values or"):
        prepare(RECIPE, [], VARY, 10**11, output=tmp_path)


def test_the_folder_is_named_after_the_recipes_run(tmp_path) -> None:
    assert prepare(RECIPE, [f"output={tmp_path}", "name=first"], [], 1).folder == tmp_path / "first-sweep"


def test_a_second_command_adds_and_a_contradiction_is_refused(tmp_path) -> None:
    first = prepare(RECIPE, [], VARY, 2, output=tmp_path)
    write_sweep(tmp_path, first.sweep)
    second = prepare(RECIPE, [], ("objective=[grpo()]", VARY[1]), 3, output=tmp_path)
    assert len(second.runs) == 3 * 2 * 3 and list(second.runs)[:8] == list(first.runs)
    assert first.others == [] and second.others == ["objective=sspo()", "objective=gspo()"]
    with pytest.raises(UserError, match=r"in which num_updates was 100, and is 4 here"):
        prepare(RECIPE, ["num_updates=4"], VARY, 2, output=tmp_path)


def test_values_and_seeds_that_a_command_leaves_out_are_said_to_run_too(tmp_path, capsys) -> None:
    write_sweep(tmp_path, prepare(RECIPE, [], VARY, 3, output=tmp_path).sweep)
    asked = ["sweep", RECIPE, "--vary", VARY[0], "--dry-run", f"--output={tmp_path}", "--vary"]
    assert main([*asked, "updates_per_sync=[8]"]) == 0
    said = f"the sweep in {tmp_path} also has updates_per_sync=2, seed=1, seed=2, which run too\n"
    assert capsys.readouterr().err == said
    assert main([*asked, VARY[1], "--seeds=3"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("sets", "vary", "seeds", "message"),
    [
        ([], VARY, 0, "--seeds is 0: a sweep has one seed or more"),
        (["seed=3"], VARY, 1, "--set seed is given, but each run of a sweep has its own seed"),
        ([], [*VARY, VARY[0]], 1, "--vary objective is given twice"),
        (["objective=grpo()"], VARY, 1, "--set objective is given with --vary objective, whose values replace it"),
        (["objective.token_gate.tau_pos=1"], VARY, 1, "--set objective.token_gate.tau_pos is given with --vary objec"),
        ([], ["objective=[sspo(), sspo( )]"], 1, "are the same: leave out one of the values"),
        ([], ["objective=[sspo(), sppo()]"], 1, "objective=sppo() cannot be read"),
        ([], ["updates_per_sync=[2, 0]"], 1, "updates_per_sync is 0"),
        ([], ["updates_per_synk=[2]"], 1, "did you mean 'updates_per_sync'?"),
        ([], ["reward_options.a/b=[2, 3]"], 1, "name is 'reward_options.a/b=2,seed=0'"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, sets, vary, seeds, message) -> None:
    with pytest.raises(UserError) as raised:
        prepare(RECIPE, sets, vary, seeds, output=tmp_path)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_starting_from_a_run_or_a_model(tmp_path) -> None:
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({}))
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    expected = [f"model.path={model}", "model.init=pretrained", "warm_start=none"]
    assert start_from_overrides(tmp_path / "run") == expected and start_from_overrides(model) == expected
    found = prepare(RECIPE, [], VARY, 1, output=tmp_path / "sweep", start_from=model)
    for run in found.runs.values():
        assert (run.model.path, run.model.init, run.warm_start) == (str(model), "pretrained", None)


@pytest.mark.parametrize("name", ["model.path", "model.init"])
def test_what_a_start_folder_sets_cannot_be_set_too(tmp_path, name) -> None:
    given = {"output": tmp_path / "sweep", "start_from": tmp_path}
    for option, sets, vary in (("--set", [f"{name}=x"], VARY), ("--vary", [], [f"{name}=[x]"])):
        with pytest.raises(UserError, match=f"^{option} {name} is given with --start-from, which sets it too"):
            prepare(RECIPE, sets, vary, 1, **given)


def test_runs_of_each_seed_start_from_a_folder_of_their_own(tmp_path) -> None:
    for seed in range(3):
        (tmp_path / f"warm-{seed}" / "model").mkdir(parents=True)
        (tmp_path / f"warm-{seed}" / "model" / "config.json").write_text(json.dumps({}))
        (tmp_path / f"warm-{seed}" / "metrics.jsonl").write_text("")
    given = {"output": tmp_path / "sweep", "start_from": tmp_path / "warm-{seed}"}
    found = prepare(RECIPE, [], VARY, 3, **given)
    assert {(run.seed, run.model.path) for run in found.runs.values()} == {
        (seed, str(tmp_path / f"warm-{seed}" / "model")) for seed in range(3)
    }
    with pytest.raises(UserError, match="warm-3"):
        prepare(RECIPE, [], VARY, 4, **given)
    (tmp_path / "warm-3").mkdir()
    (tmp_path / "warm-3" / "config.json").write_text(json.dumps({}))
    with pytest.raises(UserError, match="not the same kind of folder as with seed 3"):
        prepare(RECIPE, [], VARY, 4, **given)
