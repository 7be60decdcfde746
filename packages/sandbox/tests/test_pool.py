"""Tests of many sandboxes at a time."""

import gc
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from packages.sandbox.tests.conftest import assert_nothing_runs, processes_of, wait_until
from sspo_sandbox import Case, Limits, Sandbox, SandboxBroken, SandboxError, SandboxPool

# Honest checks do not reach the deadline on a busy machine; few checks here reach it.
QUICK = Limits(wall_seconds=5.0, cpu_seconds=5, memory_bytes=128 << 20, processes=16, output_bytes=100_000)


def test_verdicts_are_in_order_timed_and_only_so_many_at_a_time() -> None:
    watched = []
    pool = SandboxPool(Sandbox(QUICK), 2, lambda: watched.append(1))
    try:
        verdicts = pool.check_all(("def f(x): return x % 3", [f"assert f({n}) == 1"], ()) for n in range(30))
        assert [verdict.passed for verdict in verdicts] == [n % 3 == 1 for n in range(30)] and len(watched) == 30
        metrics = pool.metrics()
        assert 0 < metrics["seconds/median"] <= metrics["seconds/p95"]
        assert pool.metrics() == {}, "since the last call"
        sleepers = [("import time; time.sleep(0.5)", ["pass"], ())] * 4
        began = time.monotonic()
        pool.check_all(sleepers)
        assert time.monotonic() - began >= 1.0, "two at a time"
    finally:
        pool.close()
    with pytest.raises(SandboxError, match="concurrency is 0"):
        SandboxPool(Mock(), 0)


def test_close_ends_running_checks_and_starts_no_others() -> None:
    sandbox = Sandbox(Limits(wall_seconds=600.0))
    pool = SandboxPool(sandbox, 2)
    errors: list[str] = []

    def work() -> None:
        try:
            pool.check_all([("import time; time.sleep(1000)", ["pass"], ())] * 10)
        except BaseException as error:
            errors.append(type(error).__name__)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(processes_of(sandbox)) >= 6)
    pool.close()
    pool.close()
    thread.join(60)
    assert not thread.is_alive() and errors in ([SandboxBroken.__name__], ["CancelledError"])
    assert processes_of(sandbox) == []


def resident_kilobytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


@pytest.mark.slow
def test_hundreds_of_checks_with_hostile_ones_among_them() -> None:
    """No check is lost or stuck, no process is left, and the caller's memory does not grow."""
    right = ("def f(x): return x + 1", ["assert f(1) == 2"], (), "passed")
    kinds = [
        *[right] * 30,
        *[("def f(x): return x", ["assert f(1) == 2"], (), "failed")] * 10,
        *[("print(int(input()) * 2)", [], (Case(stdin="4", stdout="8"),), "passed")] * 5,
        ("import os\ndef f(x): os._exit(0)", ["assert f(1) == 2"], (), "error"),
        ("import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)", ["assert f(1) == 2"], (), "error"),
        ("while True: print('x' * 10000)", ["pass"], (), "output"),
        ("x = bytearray(1 << 40)", ["pass"], (), "memory"),
    ]
    forks = ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", ["pass"], (), "time")
    checks = [forks if n % 150 == 50 else kinds[n % len(kinds)] for n in range(400)]
    sandbox = Sandbox(QUICK)
    pool = SandboxPool(sandbox, 8)
    try:
        pool.check_all([check[:3] for check in checks[:100]])
        gc.collect()
        before = resident_kilobytes()
        verdicts = pool.check_all([check[:3] for check in checks])
        gc.collect()
        growth = resident_kilobytes() - before
        assert [verdict.reason for verdict in verdicts] == [check[3] for check in checks]
        assert growth < 16 * len(checks), f"{growth} kB more"
        assert_nothing_runs(sandbox)
    finally:
        pool.close()
