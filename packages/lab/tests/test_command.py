"""`megatron-sspo sweep` from its arguments to the commands of its runs; whole sweeps: tests/e2e, tests/cluster."""

import json
import os
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from packages.lab.tests.folders import make_run
from sspo_lab.driver import share_of_machine
from sspo_lab.folder import locked, read_sweep, status

ROOT = Path(__file__).parents[3]
RECIPE = str(ROOT / "examples" / "tiny_moe.py")
VARY = ("--vary", "objective=[sspo(), gspo()]", "--vary", "updates_per_sync=[2, 8]")


@pytest.fixture
def sweep(tmp_path, capsys):
    """A function sweep(arguments) that returns the exit code, the output and the error of a dry run."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["sweep", RECIPE, f"--output={tmp_path / 'sweep'}", "--dry-run", *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_dry_run_has_the_command_of_every_run(tmp_path, sweep) -> None:
    code, out, _ = sweep(*VARY, "--seeds=2", "--set", "num_updates=4")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 9 and lines[-1] == f"8 of 8 runs to go, into {tmp_path / 'sweep'}"
    sets = "--set num_updates=4 --set 'objective=gspo()' --set updates_per_sync=8 --set seed=1"
    name = "objective=gspo,updates_per_sync=8,seed=1"
    assert lines[-2] == f"megatron-sspo train {RECIPE} {sets} --set output={tmp_path / 'sweep'} --set name={name}"
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds=0"], "--at-once and --seeds must be 1 or more"),
        (["--set", "seed=3"], "--set seed is given, but the sweep sets it"),
        (["--vary", "objective=[sapo()]"], "--vary names a field twice"),
        (["--vary", "correction=[nope()]"], "correction=nope() cannot be read"),
        (["--vary", "updates_per_synk=[2]"], "did you mean 'updates_per_sync'?"),
        (["--sbatch=--time=1"], "--sbatch is for Slurm jobs"),
        (["--on=slurm", "--sbatch=--array=0-3"], "--sbatch has --array or --comment, which the sweep sets itself"),
        (["--start-from=/"], "has no config.json: name a finished run, or a Hugging Face folder, to start from"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, sweep, arguments, message) -> None:
    code, _, error = sweep(*VARY, *arguments)
    assert code == 2 and message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_each_value_is_checked_before_the_first_run_starts(tmp_path, capsys) -> None:
    vary = "advantage=[group_relative, leave_one_in]"
    assert main(["sweep", RECIPE, "--vary", vary, "--seeds=2", f"--output={tmp_path / 'sweep'}"]) == 2
    error = capsys.readouterr().err
    assert "the run advantage=leave_one_in,seed=0: there is no advantage named" in error and error.count("\n") == 1
    assert {file.name for file in tmp_path.glob("sweep/*")} == {".run.lock"}


def test_a_second_command_adds_and_a_contradiction_is_refused(tmp_path, sweep, capsys) -> None:
    folder = tmp_path / "sweep"
    few = ["--set", "num_updates=1", "--vary", "objective={ours: sspo()}"]
    make_run(folder / "objective=ours,seed=0", [0.0, 1.0])
    assert main(["sweep", RECIPE, *few, f"--output={folder}"]) == 0
    assert "1 run, 1 of them finished" in (folder / "logs" / "sweep.txt").read_text()
    assert (
        read_sweep(folder).order == ["objective=ours,seed=0"] and status(folder / "objective=ours,seed=0").update == 1
    )
    capsys.readouterr()
    code, out, error = sweep(*few[:3], "objective=[gspo()]", "--seeds=2")
    assert code == 0 and out.endswith(f"3 of 4 runs to go, into {folder}\n")
    assert error == f"the sweep in {folder} also has objective=ours, which run too\n"
    code, _, error = sweep(*few[2:])
    assert code == 2 and "in which num_updates was 1, and is 100 here" in error


def test_a_second_driver_is_refused(tmp_path, capsys) -> None:
    with locked(tmp_path / "sweep"):
        assert main(["sweep", RECIPE, *VARY, f"--output={tmp_path / 'sweep'}"]) == 2
    assert f"sweep is in use by a sweep, process {os.getpid()} on" in capsys.readouterr().err


def test_runs_of_each_seed_start_from_a_folder_of_their_own(tmp_path, sweep) -> None:
    for seed in range(2):
        make_run(tmp_path / f"warm-{seed}", [0.0, 1.0])
    start = f"--start-from={tmp_path}/warm-{{seed}}"
    _, out, _ = sweep(start, "--seeds=2")
    for seed, line in enumerate(out.splitlines()[:2]):
        assert (
            f"--set model.path={tmp_path}/warm-{seed}/model --set model.init=pretrained --set warm_start=none" in line
        )
    (tmp_path / "warm-2" / "checkpoints").mkdir(parents=True)
    assert "is a run that has no model yet: finish it with --resume" in sweep(start, "--seeds=3")[2]
    (tmp_path / "warm-2" / "config.json").write_text(json.dumps({}))
    (tmp_path / "warm-2" / "checkpoints").rmdir()
    assert "is the folder of a run for some seeds and of a model for others" in sweep(start, "--seeds=3")[2]


def test_a_job_array_and_an_experiment(tmp_path, sweep, monkeypatch) -> None:
    code, out, _ = sweep(*VARY, "--on=slurm", "--sbatch=--time=9 --nodes=2", "--at-once=3")
    folder = tmp_path / "sweep"
    log = f"--output={folder}/logs/%x-%A_%a.out"
    assert code == 0
    assert (
        f"sbatch {log} --time=9 --nodes=2 --array=0,1,2,3%3 '--comment=sweep {folder}' slurm/sweep.sbatch {folder}"
        in out
    )
    code, out, _ = sweep(*VARY, "--on=nemo-run", "--sbatch=--time=9")
    line = out.splitlines()[3]
    assert line.startswith(f"RUN={folder}/objective=gspo,updates_per_sync=8,seed=0 SERVER_NODES=0 SERVERS_PER_NODE=0")
    assert f"--on nemo-run '--sbatch=--nodes=1 --time=9 '\"'\"'--comment=sweep {folder} run 3'\"'\"''" in line
    monkeypatch.setenv("RUN", "/x")
    code, _, error = sweep(*VARY, "--on=slurm", "--sbatch=--time=9")
    assert code == 2 and "RUN is set, but each run of a sweep has its own folder" in error


def test_shares_of_the_machine(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    gpus = [f"g{number}" for number in range(8)]
    for slot, at_once, num_processes, threads, expected in (
        (1, 2, 2, "4", "g4,g5,g6,g7"),
        (2, 3, 2, "2", "g4,g5"),
        (5, 8, 4, "1", "g4,g5,g6,g7"),  # two runs on four
    ):
        found = share_of_machine(slot, at_once=at_once, num_processes=num_processes, gpus=gpus)
        assert found == {"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": expected}
