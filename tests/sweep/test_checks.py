"""The checks of a sweep before its first run starts."""

import shutil
from types import SimpleNamespace

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.memory.estimate import checkpoint_bytes, model_bytes
from megatron_sspo.preflight.resources import read_model_config
from megatron_sspo.recipe import load_recipe
from megatron_sspo.sweep.disk import warn_of_disk
from tests.config.recipes import write


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (
            "advantage=[group_relative, leave_one_in]",
            "the run advantage=leave_one_in,seed=0: there is no advantage named",
        ),
        ("rollouts.group_size=[2, 4, 8]", "the run rollouts.group_size=8,seed=0: "),
        ("objective=[sspo(), gspo()]", "r.py:advantage' cannot be computed for 2 numbers"),
    ],
)
def test_each_value_is_checked_before_the_first_run_starts(tmp_path, capsys, vary, message) -> None:
    most = 4 if "group_size" in vary else 1
    (tmp_path / "r.py").write_text(
        f"def advantage(rewards):\n    assert len(rewards) <= {most}\n    return rewards - rewards.mean()\n"
    )
    own = "" if vary.startswith("advantage") else f"advantage='{tmp_path}/r.py:advantage', "
    path = write(tmp_path, f"{own}rollouts=Rollouts(group_size=2)")
    assert main(["sweep", str(path), "--vary", vary, "--seeds=2", f"--output={tmp_path / 'sweep'}"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert error.startswith("megatron-sspo: the run ") == ("objective" not in vary)
    assert {file.name for file in tmp_path.glob("sweep/*")} <= {".run.lock"}


@pytest.mark.parametrize(
    ("settings", "checkpoints"),
    [
        ("checkpoint_every=0", 1),  # the last update saves all the same
        ("checkpoint_every=4, num_updates=12", 2),
        ("checkpoint_every=4, num_updates=12, checkpoints_kept=1", 1),
        ("checkpoint_every=8, num_updates=8", 1),
        ("checkpoint_every=4, num_updates=9, checkpoints_kept=5", 3),
        ("checkpoint_every=4, num_updates=9, checkpoints_kept=5, warm_start=warm_start()", 4),
    ],
)
def test_runs_that_keep_more_than_the_disk_has_are_said(tmp_path, monkeypatch, settings, checkpoints) -> None:
    run = load_recipe(str(write(tmp_path, settings)))
    config = read_model_config(run)
    needed = 3 * (checkpoints * checkpoint_bytes(run, config) + model_bytes(run, config))
    for free, is_said in ((needed, False), (needed - 1, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: SimpleNamespace(free=free))
        assert bool(warn_of_disk([run] * 3, tmp_path)) == is_said
    assert warn_of_disk([run] * 3, tmp_path).startswith("the 3 runs will keep ")
    assert not warn_of_disk([], tmp_path)
