"""The programs of programs.jsonl, with tests or cases and what is known of them."""

import json
from dataclasses import dataclass
from pathlib import Path

from sspo_sandbox import Case


@dataclass(frozen=True)
class Program:
    """A program and its checks.

    Attributes:
        kind: the collection: "honest", "task", "script", "printing", "ended", "corner" (several write messages of their
            own to the judge), "rare form" of programs and tests, "weak tests" that assert little, "fake" (programs that
            pretend to be right).
        right: whether the program does what it should.
        passes: whether the judge lets it pass. Where it differs from `right`, the tests do not tell, or the judge
            does not know the form: docs/sandbox.md of megatron_sspo counts them by kind.
        reason: the reason of the verdict, where it is known; "" allows "failed" and "error".
        numpy: whether it needs numpy.
    """

    kind: str
    name: str
    program: str
    right: bool
    passes: bool
    tests: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    reason: str = ""
    numpy: bool = False

    def __str__(self) -> str:
        return f"{self.kind}, {'right' if self.right else 'wrong'}: {self.name}"


def _read(line: str) -> Program:
    row = json.loads(line)
    cases = [Case(stdin=stdin, stdout=stdout) for stdin, stdout in row.pop("cases", ())]
    tests = tuple(row.pop("tests", ()))
    return Program(**{"passes": row["right"], **row}, tests=tests, cases=tuple(cases))


_FILE = Path(__file__).with_name("programs.jsonl")
PROGRAMS = [_read(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
