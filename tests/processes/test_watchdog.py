"""Deliberate hangs of two small processes, which the watchdog has to end."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from megatron_sspo.processes.ports import free_port
from megatron_sspo.processes.watch.watchdog import HUNG
from tests.forking import Python

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("watched.py")


@contextmanager
def ranks(
    scenario: str, log: Path, *, timeout: float, stop_timeout: float = 10.0, count: int = 2
) -> Iterator[list[Python]]:
    """Starts the processes of a job and returns them when all are running."""
    port = str(free_port())
    started = []
    for rank in range(count):
        place = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **place}
        arguments = (str(PROGRAM), scenario, str(log), str(timeout), str(stop_timeout))
        started.append(Python(*arguments, folder=PROGRAM.parents[2], environment=environment))
    try:
        for process in started:
            process.wait_for_output("ready\n")
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def ends(processes: list[Python]) -> list[tuple[int, str, str]]:
    """Returns (exit code, standard output, standard error) of each process."""
    found = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        found.append((process.returncode, out, err))
    return found


def assert_hung(found: list[tuple[int, str, str]], log: Path, why: str) -> None:
    """Checks that all have ended as hung, one has reported why, and the log has the stacks of both."""
    assert [code for code, _, _ in found] == [HUNG, HUNG], found
    reports = [line for _, out, _ in found for line in out.splitlines() if line.startswith(f"REPORT {HUNG}")]
    assert len(reports) == 1 and why in reports[0] and str(log) in reports[0], found
    text = log.read_text()
    assert "--- stack of rank 0" in text and "--- stack of rank 1" in text
    assert "the run hangs" in text


def test_a_signal_to_one_process_ends_a_run_that_hangs_in_a_collective(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with ranks("sleep_on_rank_1", log, timeout=1000) as processes:
        processes[0].send_signal(signal.SIGTERM)
        assert_hung(ends(processes), log, "after the stop request")
    assert "in sleep_on_rank_1" in log.read_text() and "time.sleep(1000)" in log.read_text()


def test_a_run_without_progress_ends_without_a_signal(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with ranks("sleep_on_rank_1", log, timeout=4) as processes:
        assert_hung(ends(processes), log, "no rank has made progress for 4 s (distributed_timeout=4)")


def test_a_stopped_process_ends_with_the_others(tmp_path: Path) -> None:
    """The stopped process is the one that serves the ranks' store."""
    log = tmp_path / "log.txt"
    with ranks("work_until_asked", log, timeout=4) as processes:
        processes[0].send_signal(signal.SIGSTOP)
        assert_hung(ends(processes), log, "no rank has made progress")


def test_a_stopped_process_is_continued_where_the_run_is_asked_to_end(tmp_path: Path) -> None:
    """The run then ends normally, and the log says where it was stopped. Each of two jobs has one."""
    logs = [tmp_path / "log0.txt", tmp_path / "log1.txt"]
    with ExitStack() as stack:
        jobs = [stack.enter_context(ranks("work_until_asked", log, timeout=1000, stop_timeout=60)) for log in logs]
        for stopped, processes in enumerate(jobs):
            processes[stopped].send_signal(signal.SIGSTOP)
            for process in processes:
                process.send_signal(signal.SIGTERM)
        found = [ends(processes) for processes in jobs]
    for of_job, log in zip(found, logs, strict=True):
        assert [code for code, _, _ in of_job] == [0, 0], of_job
        assert all("clean" in out for _, out, _ in of_job)
        text = log.read_text()
        assert "does not respond" in text
        assert "--- stack of rank 0" in text and "--- stack of rank 1" in text


def test_a_job_that_is_suspended_and_resumed_goes_on(tmp_path: Path) -> None:
    """All processes of the job were stopped for longer than the timeout."""
    log = tmp_path / "log.txt"
    with ranks("work_until_asked", log, timeout=4) as processes:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in processes:
                process.send_signal(number)
            time.sleep(10 if number is signal.SIGSTOP else 2)
        processes[1].send_signal(signal.SIGTERM)
        found = ends(processes)
    assert [code for code, _, _ in found] == [0, 0], found
    assert "rank 0 was stopped for 10 s" in log.read_text()


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    with ranks("fail_on_rank_1", tmp_path / "log.txt", timeout=1000) as processes:
        (code_0, _, err_0), (code_1, _, err_1) = ends(processes)
    assert code_1 == 1 and "ValueError: something broke" in err_1
    assert code_0 != 0
    assert "rank 0 ends, because rank 1 failed (ValueError: something broke)" in err_0 or "Connection closed" in err_0


def test_a_process_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    with ranks("work_until_asked", tmp_path / "log.txt", timeout=1000) as processes:
        processes[0].kill()
        found = ends(processes)
    assert found[0][0] == -signal.SIGKILL and found[1][0] not in (0, -signal.SIGKILL)


def test_code_of_the_users_that_loops_without_end_ends_the_run(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with ranks("never_return_to_rank_0", log, timeout=4) as processes:
        assert_hung(ends(processes), log, "MyReward.score has not returned for 4 s (distributed_timeout=4; raise it")
    assert "in never_return_to_rank_0" in log.read_text()


def test_a_signal_ends_a_run_whose_code_of_the_users_loops_without_end(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with ranks("never_return_to_rank_0", log, timeout=1000) as processes:
        processes[1].send_signal(signal.SIGTERM)
        assert_hung(ends(processes), log, "MyReward.score has not returned for")
    assert "after the stop request" in log.read_text()


def test_a_signal_waits_for_twice_the_longest_call_of_the_users_code(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with ranks("call_twice", log, timeout=1000, stop_timeout=9) as processes:
        for process in processes:
            process.wait_for_output("called\n")
            process.send_signal(signal.SIGTERM)
        found = ends(processes)
    assert [code for code, _, _ in found] == [0, 0], found
    assert not log.exists(), log.read_text()


def test_what_is_slow_and_healthy_is_left_alone(tmp_path: Path) -> None:
    """Three jobs at once wait for longer than their timeouts."""
    timeouts = {"wait_with_beats": 4, "wait_patiently": 1000, "call_with_marks": 4}
    logs = {scenario: tmp_path / f"{scenario}.txt" for scenario in timeouts}
    with ExitStack() as stack:
        jobs = {
            scenario: stack.enter_context(ranks(scenario, logs[scenario], timeout=timeout, stop_timeout=10))
            for scenario, timeout in timeouts.items()
        }
        for process in jobs["wait_patiently"]:
            process.send_signal(signal.SIGTERM)
        found = {scenario: ends(processes) for scenario, processes in jobs.items()}
    for scenario, of_job in found.items():
        assert [code for code, _, _ in of_job] == [0, 0], (scenario, of_job)
        assert not logs[scenario].exists(), logs[scenario].read_text()


def test_a_single_process_is_watched_too(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with ranks("work_until_asked", log, timeout=1000, count=1) as processes:
        processes[0].send_signal(signal.SIGTERM)
        assert ends(processes)[0][0] == 0
    with ranks("wait_patiently", log, timeout=3, count=1) as processes:
        code, out, _ = ends(processes)[0]
    assert code == HUNG and "REPORT" in out and "--- stack of rank 0" in log.read_text()


def test_a_disk_that_hangs_does_not_keep_a_hung_run_alive(tmp_path: Path) -> None:
    """The log is a pipe that nobody reads: to open it blocks, as a file of a disk that does not answer."""
    os.mkfifo(tmp_path / "log.txt")
    with ranks("sleep", tmp_path / "log.txt", timeout=3, count=1) as processes:
        code, out, err = ends(processes)[0]
    assert code == HUNG and "REPORT" in out and "--- stack of rank 0" in err


def test_a_path_that_is_not_utf_8_ends_a_run_like_any_other(tmp_path: Path) -> None:
    folder = Path(f"{tmp_path}/\udcff")
    folder.mkdir()
    with ranks("sleep", folder / "log.txt", timeout=3, count=1) as processes:
        assert ends(processes)[0][0] == HUNG
    assert "the run hangs" in (folder / "log.txt").read_text()


def test_a_reason_that_is_not_utf_8_reaches_the_other_ranks(tmp_path: Path) -> None:
    with ranks("fail_with_a_path", tmp_path / "log.txt", timeout=1000) as processes:
        (code, _, err), _ = ends(processes)
    assert code == 2 and r"rank 1 failed (ValueError: \udcff cannot be read)" in err


def test_a_call_of_c_code_that_keeps_pythons_lock_is_ended(tmp_path: Path) -> None:
    """No thread of the process runs, so that of the watchdog does not either. One of two jobs is asked to end."""
    logs, options = [tmp_path / "log0.txt", tmp_path / "log1.txt"], [(4, 1000), (1000, 4)]
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(ranks("keep_the_lock", log, timeout=timeout, stop_timeout=stop_timeout, count=1))
            for log, (timeout, stop_timeout) in zip(logs, options, strict=True)
        ]
        time.sleep(1)
        jobs[1][0].send_signal(signal.SIGTERM)
        found = [ends(processes)[0] for processes in jobs]
    for (code, _, err), log in zip(found, logs, strict=True):
        assert code == -signal.SIGKILL
        assert "no Python thread of rank 0" in err and "no Python thread of rank 0" in log.read_text()
        assert "in keep_the_lock" in err  # the stack


def test_a_rank_that_keeps_pythons_lock_is_ended_with_the_others(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with ranks("keep_the_lock_on_rank_0", log, timeout=3) as processes:
        found = ends(processes)
    assert found[1][0] == HUNG and found[0][0] == -signal.SIGKILL, found
    assert "no rank has made progress" in log.read_text() and "in keep_the_lock" in found[0][2]


def test_the_time_in_which_a_process_is_stopped_alone_does_not_count(tmp_path: Path) -> None:
    with ranks("work_until_asked", tmp_path / "log.txt", timeout=4, count=1) as processes:
        processes[0].send_signal(signal.SIGSTOP)
        time.sleep(7)
        processes[0].send_signal(signal.SIGCONT)
        time.sleep(1)
        processes[0].send_signal(signal.SIGTERM)
        assert ends(processes)[0][0] == 0
