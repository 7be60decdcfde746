"""Measures the latency and throughput of the sandbox at several concurrencies.

    python benchmarks/sandbox.py                       # 200 of each
    python benchmarks/sandbox.py --count 50 --concurrency 1 8

"check" is a small program with one assert statement, in its own sandbox, from the sandbox's start to the end of its
last process. "case" is one input-output pair, "20 cases" are 20 pairs in one sandbox, "run" is a program alone, "cell"
is a cell of an open session. The latency is that of one call, without the wait for a free place.
"""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from sspo_sandbox import Case, Runner, open_sandbox

_PROGRAM = "def f(x):\n    return x * x\n"
_SCRIPT = "x = int(input())\nprint(x * x)\n"


def check(runner: Runner) -> bool:
    return runner.check(_PROGRAM, ["assert f(3) == 9"]).passed


def case(runner: Runner) -> bool:
    return runner.check(_SCRIPT, [], [Case(stdin="3", stdout="9")]).passed


def cases(runner: Runner) -> bool:
    return runner.check(_SCRIPT, [], [Case(stdin=str(n), stdout=str(n * n)) for n in range(20)]).passed


def run(runner: Runner) -> bool:
    return runner.run(_SCRIPT, "3").stdout == "9\n"


def measure(work: Callable[[], bool], count: int, concurrency: int) -> tuple[float, float, float]:
    """Returns the median and 95th percentile of the latency in milliseconds, and calls per second."""

    def timed(_: int) -> float:
        started = time.perf_counter()
        assert work(), "a right program did not pass"
        return (time.perf_counter() - started) * 1000

    with ThreadPoolExecutor(concurrency) as threads:
        started = time.perf_counter()
        latencies = sorted(threads.map(timed, range(count)))
        seconds = time.perf_counter() - started
    return median(latencies), latencies[int(0.95 * len(latencies))], count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="calls in each row; default: %(default)s")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8], help="default: 1 2 4 8")
    parser.add_argument("--url", default="", help="URL of a remote sandbox to use instead of this machine's")
    options = parser.parse_args()
    started = time.perf_counter()
    runner = open_sandbox(url=options.url)
    try:
        print(f"opened and probed in {time.perf_counter() - started:.1f} s; {os.cpu_count()} cores, load {_load()}")
        print(f"{'':10} {'at a time':>9} {'median ms':>10} {'p95 ms':>8} {'a second':>9}")
        for name, work in (("check", check), ("case", case), ("20 cases", cases), ("run", run)):
            for concurrency in options.concurrency:
                _print_row(name, concurrency, measure(lambda w=work: w(runner), options.count, concurrency))
        session = runner.session()
        session.execute("x = 3")
        _print_row("cell", 1, measure(lambda: session.execute("x * x") == "9\n", options.count, 1))
        session.close()
        print(f"load {_load()}")
    finally:
        runner.close()


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _print_row(name: str, concurrency: int, found: tuple[float, float, float]) -> None:
    print(f"{name:10} {concurrency:9} {found[0]:10.0f} {found[1]:8.0f} {found[2]:9.1f}")


if __name__ == "__main__":
    main()
