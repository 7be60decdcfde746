"""A sweep's folder: its runs, and which of them are finished."""

import json
from dataclasses import replace

import pytest

from packages.lab.tests.folders import make_run, make_sweep
from sspo_lab.folder import FILE, Status, load_existing_or_new, read_sweep, status, train_arguments, write_sweep
from sspo_lab.trainer import LabError


def test_a_sweep_is_read_as_it_was_written(tmp_path) -> None:
    sweep = make_sweep(tmp_path, "objective={ours: sspo(), 目的: gspo()}", "updates_per_sync=[2, 8]", seeds=2)
    assert read_sweep(tmp_path) == sweep
    renamed = replace(sweep, recipe="caf\udce9.py")
    write_sweep(tmp_path, renamed)
    assert read_sweep(tmp_path) == renamed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", FILE]


@pytest.mark.parametrize("content", ["", "[]", '{"recipe": 1}', None])
def test_a_damaged_file_is_one_sentence(tmp_path, content) -> None:
    make_sweep(tmp_path, "objective=[sspo(), gspo()]")
    if content is None:  # a run is missing
        kept = json.loads((tmp_path / FILE).read_text())
        content = json.dumps({**kept, "runs": kept["runs"][:1]})
    (tmp_path / FILE).write_text(content)
    with pytest.raises(LabError, match=f"{FILE} .*: restore the file"):
        read_sweep(tmp_path)


def test_another_recipe_is_refused(tmp_path) -> None:
    sweep = make_sweep(tmp_path, "objective=[sspo()]")
    run = {"class": "Run", "optimizer": {"class": "Optimizer", "lr": 1e-6}, "name": "a"}
    write_sweep(tmp_path, replace(sweep, run=run))
    same = replace(sweep, order=(), run={**run, "name": "b", "output": "/elsewhere"})
    assert load_existing_or_new(tmp_path, same).order == sweep.order
    other = replace(sweep, run={**run, "optimizer": {"class": "Optimizer", "lr": 2e-6}})
    with pytest.raises(LabError, match=r"optimizer\.lr was 1e-06, and is 2e-06 here: choose another --output"):
        load_existing_or_new(tmp_path, other)
    make_run(tmp_path / "run", [0.0, 1.0])
    with pytest.raises(LabError, match="is the folder of a run: choose another with --output"):
        load_existing_or_new(tmp_path / "run", sweep)


def test_what_is_done_is_read_off_the_runs_folder(tmp_path) -> None:
    run = tmp_path / "run"
    assert status(run) == Status("new")
    run.mkdir()
    assert status(run) == Status("new")  # a start that was killed before it wrote its configuration
    run.rmdir()
    make_run(run, [0.0, 0.5, 1.0])
    assert status(run) == Status("finished", 2)
    for name, change in {
        "metrics.jsonl": lambda text: text[:-1],  # a row that a kill has cut short
        "evaluations.jsonl": lambda text: text.rpartition("\n")[0].rpartition("\n")[0] + "\n",
        "config.json": lambda text: text.replace('"num_updates": 2', '"num_updates": 3'),
    }.items():
        text = (run / name).read_text()
        (run / name).write_text(change(text))
        assert status(run).state == "begun", name
        (run / name).write_text(text)
    for name, content in {"config.json": "{", "metrics.jsonl": "x\n", "evaluations.jsonl": '{"a": 1}\n'}.items():
        text = (run / name).read_text()
        (run / name).write_text(content)
        assert status(run) == Status("begun"), name
        (run / name).write_text(text)
    (run / "model" / "config.json").unlink()
    assert status(run) == Status("begun", 2)


def test_a_run_that_has_begun_is_resumed(tmp_path) -> None:
    sweep = make_sweep(tmp_path, "objective=[sspo()]")
    cell = sweep.cells()[0]
    new = train_arguments(tmp_path, sweep, cell)
    sets = ["objective=sspo()", "seed=0", f"output={tmp_path}", "name=objective=sspo,seed=0"]
    assert new == ["train", "recipe.py", *(part for text in sets for part in ("--set", text))]
    make_run(tmp_path / cell.name, [0.0], num_updates=4, has_model=False)
    assert train_arguments(tmp_path, sweep, cell) == [*new, "--resume", str(tmp_path / cell.name)]
