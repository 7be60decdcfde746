import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from packages.answers.tests import pool_jobs
from packages.sandbox.tests.conftest import wait_until
from sspo_answers.pool import DeadlinePool

FAILED = "failed"


def make(num_workers: int = 2, deadline: float = 30.0, prepare=None) -> DeadlinePool:
    return DeadlinePool(pool_jobs.work, num_workers, deadline, FAILED, prepare)


def is_alive(pid: int) -> bool:
    """Returns whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread may end while the list is read
            found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def test_results_come_in_the_items_order() -> None:
    with make() as pool:
        items = [("sleep", 0.3), *(("echo", n) for n in range(50))]
        assert pool.map(items) == [0.3, *range(50)]
        assert pool.map([]) == []


@pytest.mark.parametrize("bomb", [("sleep", 600), ("compute", 9)])
def test_only_the_item_over_its_deadline_fails(bomb, caplog) -> None:
    with make(deadline=1.0) as pool:
        assert pool.map([("echo", 0), bomb, *(("echo", n) for n in range(20)), bomb, ("echo", 99)]) == [
            0,
            FAILED,
            *range(20),
            FAILED,
            99,
        ]
        assert pool.map([("echo", 1)] * 4) == [1] * 4
    assert "was not done after 1.0 s" in caplog.text


def test_only_the_item_of_a_crashed_worker_fails(caplog) -> None:
    with make(num_workers=1) as pool:
        assert pool.map([("echo", 0), ("die", None), ("echo", 1)]) == [0, FAILED, 1]
    assert "crashed" in caplog.text


def test_a_worker_that_is_killed_between_items_is_replaced() -> None:
    with make(num_workers=1) as pool:
        (pid,) = pool.map([("pid", None)])
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid))
        (other,) = pool.map([("pid", None)])
        assert other != pid


def test_the_deadline_excludes_the_start_of_a_worker() -> None:
    with make(deadline=1.0, prepare=pool_jobs.slow_start) as pool:
        assert pool.map([("echo", n) for n in range(4)]) == [0, 1, 2, 3]
        assert pool.map([("die", None), ("echo", 1)] * 2) == [FAILED, 1] * 2


def test_an_exception_of_the_function_is_raised_with_its_traceback() -> None:
    with make() as pool:
        with pytest.raises(RuntimeError, match=r"(?s)in work.*ValueError: the reason"):
            pool.map([("raise", "the reason"), ("echo", 1)])
        assert pool.map([("echo", 1)]) == [1]


def test_a_worker_that_cannot_start_is_an_error_and_not_a_verdict() -> None:
    with make(prepare=pool_jobs.failing_start) as pool, pytest.raises(RuntimeError, match="no module named sympathy"):
        pool.map([("echo", 1)])


def test_close_leaves_no_process_even_where_one_is_busy(tmp_path) -> None:
    before = children_of(os.getpid())
    file = tmp_path / "pid"
    pool = make(deadline=500.0)
    errors = []

    def busy() -> None:
        try:
            pool.map([("write pid and sleep", str(file))])
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=busy)
    thread.start()
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    workers = children_of(os.getpid()) - before
    assert len(workers) == 2 and int(file.read_text()) in workers
    pool.close()
    pool.close()
    thread.join(60)
    assert not any(is_alive(pid) for pid in workers)
    assert children_of(os.getpid()) == before
    assert len(errors) == 1 and "closed" in errors[0]
    with pytest.raises(RuntimeError, match="the pool is closed"):
        pool.map([("echo", 1)])


def test_close_leaves_no_open_files() -> None:
    with make():
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with make(deadline=0.5) as pool:
            pool.map([("sleep", 600), ("echo", 1), ("die", None)])
    assert len(os.listdir("/proc/self/fd")) == before


def start_script(tmp_path: Path, last_line: str) -> tuple[subprocess.Popen, int]:
    """Starts a program without a `__main__` guard that keeps a worker busy; returns it and the worker's pid."""
    file = tmp_path / "pid"
    script = tmp_path / "script.py"
    script.write_text(
        f"import signal, sys; sys.path[:] = {sys.path!r}\n"
        # children of a shell's background job ignore Ctrl-C
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from packages.answers.tests import pool_jobs\n"
        "from sspo_answers.pool import DeadlinePool\n"
        "pool = DeadlinePool(pool_jobs.work, 1, 500.0, None)\n" + last_line.format(file=str(file))
    )
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return process, int(file.read_text())


def test_workers_die_with_a_parent_that_is_killed(tmp_path) -> None:
    process, worker = start_script(tmp_path, "pool.map([('write pid and sleep', {file!r})])\n")
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not is_alive(worker))


def test_ctrl_c_ends_the_map_and_the_workers_print_nothing(tmp_path) -> None:
    process, worker = start_script(
        tmp_path,
        "try:\n"
        "    with pool: pool.map([('write pid and sleep', {file!r})])\n"
        "except KeyboardInterrupt: print('interrupted', file=sys.stderr)\n",
    )
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "interrupted\n"
    assert process.returncode == 0
    assert not is_alive(worker)
