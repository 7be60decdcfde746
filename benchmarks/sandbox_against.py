"""Throughput of the sandbox, side by side with that of another checkout, such as an earlier commit.

    git worktree add ../before COMMIT
    python benchmarks/sandbox_against.py ../before

Each checkout has a process of its own. In every round both measure each kind of work, one after the other, and the
order of the two changes from round to round. A ratio is that of this checkout's calls a second to the other's, and the
printed one is the median over the rounds, with the smallest and the largest.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median

_ROOT = Path(__file__).parents[1]
_WORK = {
    "check": 'runner.check("def f(x):\\n    return x * x\\n", ["assert f(3) == 9"]).passed',
    "ten asserts": 'runner.check("def f(x):\\n    return [x] * 3\\n", ["assert f(3) == [3, 3, 3]"] * 10).passed',
    "case": 'runner.check("print(int(input()) ** 2)", [], [Case(stdin="3", stdout="9")]).passed',
    "run": 'runner.run("print(int(input()) ** 2)", "3").stdout == "9\\n"',
}
_WORKER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from sspo_sandbox import Case, open_sandbox
runner, threads = open_sandbox(), ThreadPoolExecutor(2)
print("ready", flush=True)
for line in sys.stdin:
    count, _, expression = line.partition(" ")
    started = time.perf_counter()
    found = list(threads.map(lambda _: eval(expression), range(int(count))))
    seconds = time.perf_counter() - started
    print(int(count) / seconds if all(found) else "wrong", flush=True)
runner.close()
"""


class Checkout:
    """A process that measures the sandbox of a checkout."""

    def __init__(self, folder: Path) -> None:
        environment = {
            "PYTHONPATH": str(folder / "packages" / "sandbox"),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._line()  # "ready": the sandbox has passed its probe

    def measure(self, expression: str, count: int) -> float:
        """Returns the calls a second, two at a time."""
        assert self.process.stdin is not None
        print(count, expression, file=self.process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the process of {self.process.args} has ended; its error is above")
        return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the root of the other checkout")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--count", type=int, default=20, help="calls of each kind in a round; default: %(default)s")
    options = parser.parse_args()
    checkouts = [Checkout(_ROOT), Checkout(options.other.resolve())]
    found: dict[str, list[list[float]]] = {name: [] for name in _WORK}
    for round_number in range(options.rounds):
        for name, expression in _WORK.items():
            order = checkouts if round_number % 2 == 0 else checkouts[::-1]
            speeds = {id(checkout): checkout.measure(expression, options.count) for checkout in order}
            found[name].append([speeds[id(checkout)] for checkout in checkouts])
    for checkout in checkouts:
        checkout.close()
    print(f"{'':12} {'here a second':>14} {'there a second':>15} {'ratio':>6}")
    for name, rows in found.items():
        ratios = [here / there for here, there in rows]
        here, there = (median(column) for column in zip(*rows, strict=True))
        print(f"{name:12} {here:14.1f} {there:15.1f} {median(ratios):6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
