"""The driver starts, resumes and abandons runs of a fake trainer; tests with the real one are in tests/e2e."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_sspo.processes.console import Display
from megatron_sspo.sweep.driver import Driver, share_of_machine
from megatron_sspo.sweep.progress import SweepProgress, format_duration
from tests.sweep.folders import make_run, make_sweep

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

_PROGRAM = """
import os, signal, sys
from pathlib import Path
from megatron_sspo.processes.console import Display
from megatron_sspo.processes.surroundings import prepare_process
from megatron_sspo.sweep.driver import Driver
from megatron_sspo.sweep.folder import read_sweep
from megatron_sspo.sweep.progress import SweepProgress

prepare_process()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background jobs,
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup ignores this one
folder = Path(sys.argv[1])
parent = os.getppid() if sys.argv[3:] == ["--with-parent"] else None
sys.executable = sys.argv[2]
sweep = read_sweep(folder)
progress = SweepProgress(folder, {cell.name: 2 for cell in sweep.cells()}, Display(silent=False))
driver = Driver(
    folder, sweep, sweep.cells(), progress, at_once=2, environment_of=lambda *_: {}, parent=parent
)
print("ready", flush=True)
code = driver.run()
progress.close()
sys.exit(code)
"""


@pytest.fixture
def trainer(tmp_path_factory) -> str:
    """The interpreter of the fake trainer: it accepts `-m megatron_sspo` and starts fast."""
    path = tmp_path_factory.mktemp("trainer") / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {HERE / "trainer.py"} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def drive(tmp_path, trainer, monkeypatch):
    """A function drive(behaviour) that returns the driver's exit code and its output."""

    def run(behaviour: dict[str, str], at_once: int = 2, **more) -> tuple[int, list[str]]:
        sweep = make_sweep(tmp_path, "updates_per_sync=[2, 8]", seeds=2)
        (tmp_path / "behaviour").write_text("".join(f"{name} {words}\n" for name, words in behaviour.items()))
        monkeypatch.setattr(sys, "executable", trainer)
        progress = SweepProgress(tmp_path, dict.fromkeys(sweep.order, 2), Display(silent=True))
        said: list[str] = []
        monkeypatch.setattr(progress, "log", said.append)
        environment_of = more.pop("environment_of", lambda *_: {})
        code = Driver(
            tmp_path, sweep, sweep.cells(), progress, at_once=at_once, environment_of=environment_of, **more
        ).run()
        progress.close()
        return code, said

    return run


def attempts(folder: Path, name: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((folder / "attempts").glob(f"{name}.*"))]


NAMES = [f"updates_per_sync={mu},seed={seed}" for seed in (0, 1) for mu in (2, 8)]


def test_every_run_is_finished_in_a_process_group_of_its_own(tmp_path, drive) -> None:
    code, said = drive({})
    assert code == 0 and said[-1] == "4 of 4 runs finished; update 8 of 8"
    found = [attempts(tmp_path, name) for name in NAMES]
    assert all(len(one) == 1 and not one[0]["resumed"] and one[0]["pid"] == one[0]["group"] for one in found)


def test_a_run_that_fails_is_resumed_once_and_the_others_go_on(tmp_path, drive) -> None:
    code, said = drive({NAMES[0]: "killed refused", NAMES[1]: "killed", NAMES[2]: "by_file"})
    assert code == 1
    assert [attempt["resumed"] for attempt in attempts(tmp_path, NAMES[0])] == [False, True]
    assert f"{NAMES[0]}: was killed by SIGKILL: its log is empty; retrying" in said
    log = tmp_path / "logs" / f"{NAMES[0]}.txt"
    (why,) = [line for line in said if line.startswith(f"{NAMES[0]}: ended with exit code 2: megatron-sspo: the moon")]
    assert r"is in the \x1b[2Jwrong place..." in why and why.endswith(f"...; log: {log}") and len(why) < 1500
    assert f"{NAMES[1]}: finished" in said and f"{NAMES[3]}: finished" in said
    assert (
        len(attempts(tmp_path, NAMES[2])) == 1 and f"{NAMES[2]}: was stopped by the file `stop` in its folder" in said
    )
    assert said[-1] == "2 of 4 runs finished, 2 failed; update 4 of 8"


def test_a_run_that_gets_further_is_tried_again_and_again(tmp_path, drive) -> None:
    code, _ = drive({NAMES[0]: "further further further killed"})
    assert code == 0 and len(attempts(tmp_path, NAMES[0])) == 5


def test_shares_of_the_machine(tmp_path, drive, monkeypatch) -> None:
    seen = []

    def environment_of(place, cell):
        seen.append((place, cell.name))
        return {"OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": str(place)}

    drive({}, environment_of=environment_of)
    assert {place for place, _ in seen} == {0, 1} and len(seen) == 4
    assert attempts(tmp_path, NAMES[0])[0]["threads"] == "7"
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    gpus = [f"g{number}" for number in range(8)]

    def share(place: int, at_once: int, num_processes: int, gpus=()) -> dict[str, str]:
        return share_of_machine(place, at_once=at_once, num_processes=num_processes, gpus=gpus)

    assert share(0, 2, 4) == {"OMP_NUM_THREADS": "2"} and share(0, 32, 2) == {"OMP_NUM_THREADS": "1"}
    assert share(1, 2, 2, gpus)["CUDA_VISIBLE_DEVICES"] == "g4,g5,g6,g7"
    assert share(2, 3, 2, gpus)["CUDA_VISIBLE_DEVICES"] == "g4,g5"
    assert share(5, 8, 4, gpus)["CUDA_VISIBLE_DEVICES"] == "g4,g5,g6,g7"  # two runs on four
    assert share(9, 16, 1, gpus)["CUDA_VISIBLE_DEVICES"] == "g1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert share(0, 2, 1) == {}


@pytest.fixture
def started(tmp_path, trainer):
    """A function started(behaviour, ...) that returns a driver in its own process, whose first two runs wait."""
    processes = []

    def start(*arguments: str, word: str = "waits") -> "subprocess.Popen[str]":
        make_sweep(tmp_path, "updates_per_sync=[2, 8]", seeds=2)
        (tmp_path / "behaviour").write_text("".join(f"{name} {word}\n" for name in NAMES))
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(tmp_path), trainer, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        processes.append(process)
        wait_for(lambda: all((tmp_path / name / "waits").exists() for name in NAMES[:2]))
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(happened, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(folder: Path) -> list[int]:
    pids = [json.loads(path.read_text())["pid"] for path in (folder / "attempts").iterdir()]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "trainer.py" in command(pid)]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_has_the_runs_save_and_leave(tmp_path, started, number) -> None:
    process = started()
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 85 and alive(tmp_path) == []
    assert f"{signal.Signals(number).name} came, and the runs have stopped: the same command continues them" in out
    assert len(list((tmp_path / "attempts").iterdir())) == 2  # no run was started after the signal


def test_a_second_interrupt_ends_runs_that_do_not_leave(tmp_path, started) -> None:
    process = started(word="deaf")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)  # Slurm, for example, sends several
    time.sleep(0.5)
    assert process.poll() is None and len(alive(tmp_path)) == 2
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 85 and alive(tmp_path) == []


def test_runs_die_with_their_driver(tmp_path, started) -> None:
    process = started(word="deaf")
    assert len(alive(tmp_path)) == 2
    process.kill()
    process.wait()
    wait_for(lambda: alive(tmp_path) == [])


def test_a_driver_dies_with_whoever_started_it_where_it_is_told_to(tmp_path, trainer) -> None:
    make_sweep(tmp_path, "updates_per_sync=[2, 8]", seeds=2)
    (tmp_path / "behaviour").write_text("".join(f"{name} deaf\n" for name in NAMES))
    words = [sys.executable, "-c", _PROGRAM, str(tmp_path), trainer, "--with-parent"]
    program = f"import subprocess, time; subprocess.Popen({words!r}); time.sleep(120)"
    parent = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        wait_for(lambda: all((tmp_path / name / "waits").exists() for name in NAMES[:2]))
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: alive(tmp_path) == [])


def test_a_closed_output_does_not_end_a_sweep(tmp_path, trainer) -> None:
    sweep = make_sweep(tmp_path, "updates_per_sync=[2, 8]", seeds=2)
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), trainer],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=300) == 0
    assert all((tmp_path / name / "model").is_dir() for name in sweep.order)


def test_a_terminal_shows_what_runs_and_may_be_closed(tmp_path, trainer) -> None:
    make_sweep(tmp_path, "updates_per_sync=[2, 8]", seeds=2)
    (tmp_path / "behaviour").write_text("".join(f"{name} waits\n" for name in NAMES[:2]))
    terminal, its_end = pty.openpty()
    words = [sys.executable, "-c", _PROGRAM, str(tmp_path), trainer]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(words, stdout=its_end, stderr=its_end, env=environment)
    os.close(its_end)
    shown = b""
    while b"0 of 4 runs finished, 2 running; update 0 of 8, time left unknown" not in shown:
        shown += os.read(terminal, 4096)
    assert f"{NAMES[0]}: starts".encode() in shown and b"0/2" in shown
    os.close(terminal)
    time.sleep(1.5)  # long enough for the display to refresh
    assert process.poll() is None
    for attempt in alive(tmp_path):
        os.kill(attempt, signal.SIGKILL)
    assert process.wait(timeout=300) == 0
    assert all((tmp_path / name / "model").is_dir() for name in NAMES)


def test_progress_counts_what_was_there_before(tmp_path) -> None:
    make_run(tmp_path / "a", [0.0, 0.1, 0.2, 0.3, 0.4])
    make_run(tmp_path / "b", [0.0, 0.1], num_updates=4, has_model=False)
    progress = SweepProgress(tmp_path, {"a": 4, "b": 4, "c": 4}, Display(silent=True))
    assert progress.summary_line() == "1 of 3 runs finished; update 5 of 12, time left unknown"
    progress._began -= 10
    make_run(tmp_path / "c", [0.0, 0.1, 0.2], num_updates=4, has_model=False)
    progress._last_check -= 10
    progress.update({"c"})
    assert progress.summary_line().startswith(
        "1 of 3 runs finished, 1 running; update 7 of 12, 2"
    )  # 2 in 10 s, 5 to go


def test_durations() -> None:
    assert [format_duration(seconds) for seconds in (3, 99, 100, 3_599, 11_100)] == [
        "3 s",
        "99 s",
        "2 min",
        "1 h 00 min",
        "3 h 05 min",
    ]


def test_a_signal_that_another_thread_gets_while_a_run_starts_reaches_the_run(drive, monkeypatch):
    """Signals are blocked in the main thread alone, and Python then calls the handler there all the same."""
    start = subprocess.Popen

    def start_after_a_signal(*arguments, **options):
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start_after_a_signal)
    code, said = drive({NAMES[0]: "waits"}, at_once=1)
    assert code == 85 and f"{NAMES[0]}: has stopped" in said
