"""The driver starts, resumes and abandons runs of a fake trainer; tests with the real one are in tests/e2e."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packages.lab.tests.folders import make_run, make_sweep
from sspo_lab.progress import SweepProgress

HERE = Path(__file__).parent

_PROGRAM = """
import signal, sys
from pathlib import Path
from sspo_lab.driver import Driver
from sspo_lab.folder import read_sweep, train_arguments
from sspo_lab.progress import SweepProgress

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background jobs,
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup ignores this one
folder, sys.executable = Path(sys.argv[1]), sys.argv[2]
sweep = read_sweep(folder)
progress = SweepProgress(folder, {cell.name: 2 for cell in sweep.cells()})
start = lambda slot, cell: (train_arguments(folder, sweep, cell), {"SLOT": str(slot)})
code = Driver(folder, sweep.cells(), progress, at_once=2, start=start).run()
progress.close()
sys.exit(code)
"""
NAMES = [f"updates_per_sync={mu},seed={seed}" for seed in (0, 1) for mu in (2, 8)]


@pytest.fixture
def trainer(tmp_path_factory) -> str:
    """The interpreter of the fake trainer: it accepts `-m megatron_sspo` and starts fast."""
    path = tmp_path_factory.mktemp("trainer") / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {HERE / "trainer.py"} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def start(tmp_path, trainer):
    """A function start(behaviour of runs) that returns a driver of four runs, two at a time, in its own process."""
    processes = []

    def run(behaviour: dict[str, str]) -> "subprocess.Popen[str]":
        make_sweep(tmp_path, "updates_per_sync=[2, 8]", seeds=2)
        (tmp_path / "behaviour").write_text("".join(f"{name} {words}\n" for name, words in behaviour.items()))
        command = [sys.executable, "-c", _PROGRAM, str(tmp_path), trainer]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)
        if set(behaviour.values()) <= {"waits", "deaf"} and behaviour:
            wait_for(lambda: all((tmp_path / name / "waits").exists() for name in NAMES[:2]))
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(happened, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def attempts(folder: Path, name: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((folder / "attempts").glob(f"{name}.*"))]


def alive(folder: Path) -> list[int]:
    def command(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            return ""

    pids = [json.loads(path.read_text())["pid"] for path in (folder / "attempts").iterdir()]
    return [pid for pid in pids if "trainer.py" in command(pid)]


def test_every_run_is_finished_in_a_process_group_of_its_own(tmp_path, start) -> None:
    process = start({})
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "4 of 4 runs finished; update 8 of 8" in out.splitlines()[-1]
    found = [attempts(tmp_path, name) for name in NAMES]
    assert all(len(one) == 1 and not one[0]["resumed"] and one[0]["pid"] == one[0]["group"] for one in found)
    assert {one[0]["slot"] for one in found} == {"0", "1"}
    assert (tmp_path / "logs" / "sweep.txt").read_text() == out


def test_a_run_that_fails_is_resumed_and_the_others_go_on(tmp_path, start) -> None:
    behaviour = {
        NAMES[0]: "killed refused",
        NAMES[1]: "killed",
        NAMES[2]: "by_file",
        NAMES[3]: "further further killed",
    }
    process = start(behaviour)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and out.endswith("2 of 4 runs finished, 2 failed; update 4 of 8\n")
    assert [attempt["resumed"] for attempt in attempts(tmp_path, NAMES[0])] == [False, True]
    assert f"{NAMES[0]}: was killed by SIGKILL: its log is empty; retrying" in out
    why = rf"{NAMES[0]}: ended with exit code 2: megatron-sspo: the moon is in the \x1b[2Jwrong place..."
    assert why in out and f"; log: {tmp_path / 'logs' / NAMES[0]}.txt" in out
    assert f"{NAMES[1]}: finished" in out and f"{NAMES[3]}: finished" in out
    assert f"{NAMES[2]}: was stopped by the file `stop` in its folder" in out
    # one that gets further is tried again and again
    assert [len(attempts(tmp_path, name)) for name in NAMES] == [2, 2, 1, 4]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_has_the_runs_save_and_leave(tmp_path, start, number) -> None:
    process = start(dict.fromkeys(NAMES, "waits"))
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 85 and alive(tmp_path) == []
    assert f"{signal.Signals(number).name} came, and the runs have stopped: the same command continues them" in out
    assert len(list((tmp_path / "attempts").iterdir())) == 2  # no run was started after the signal


def test_a_second_interrupt_ends_runs_that_do_not_leave(tmp_path, start) -> None:
    process = start(dict.fromkeys(NAMES, "deaf"))
    for _ in range(2):  # Slurm, for example, sends several
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    assert process.poll() is None and len(alive(tmp_path)) == 2
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 85 and alive(tmp_path) == []


def test_runs_die_with_their_driver(tmp_path, start) -> None:
    process = start(dict.fromkeys(NAMES, "deaf"))
    assert len(alive(tmp_path)) == 2
    process.kill()
    process.wait()
    wait_for(lambda: alive(tmp_path) == [])


def test_progress_counts_what_was_there_before(tmp_path, monkeypatch, capsys) -> None:
    make_run(tmp_path / "a", [0.0, 0.1, 0.2, 0.3, 0.4])
    make_run(tmp_path / "b", [0.0, 0.1], num_updates=4, has_model=False)
    progress = SweepProgress(tmp_path, {"a": 4, "b": 4, "c": 4})
    assert progress.summary_line() == "1 of 3 runs finished; update 5 of 12, unknown time left"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    make_run(tmp_path / "c", [0.0, 0.1, 0.2], num_updates=4, has_model=False)
    (tmp_path / "logs").mkdir()
    progress.update({"c"})
    assert (
        "1 of 3 runs finished, 1 running; update 7 of 12, 0:04:10 left" in capsys.readouterr().out
    )  # 2 in 100 s, 5 to go
