"""Tests of verdicts on right programs, wrong programs, and programs that pretend to be right."""

import pytest

from packages.sandbox.tests.conftest import LIMITS, assert_nothing_runs
from packages.sandbox.tests.programs import PROGRAMS, Program
from sspo_sandbox import Case, Sandbox
from sspo_sandbox.vacuous import find_stubs

FORGED_OPERATORS = """
assert abs(f(1) - 2.0) < 1e-6
assert 2 - f(1) == 0
assert 2 in f(1)
assert f(1) < 3
assert f(1) in (2, 3)
assert f(1) == [2]
assert (f(1), 1) == (2, 1)
assert {f(1)} == {2}
assert sorted(f(1)) == [1, 2]
import math; assert math.isclose(f(1), 2)
assert f(1) is True
assert isinstance(f(1), int)
assert type(f(1)) is int
assert f(1) >= 2 and f(1) <= 2
assert round(f(1), 3) == 2
assert str(f(1)) == '2'
"""

# Looks for what it has to print in everything that it can read.
SEARCHES = """
import os, re
found = []
for pid in [p for p in os.listdir('/proc') if p.isdigit()]:
  try:
    for line in open(f'/proc/{pid}/maps'):
      start, end = (int(p, 16) for p in line.split()[0].split('-'))
      try:
        with open(f'/proc/{pid}/mem', 'rb', 0) as m:
          m.seek(start)
          found += re.findall(rb'UNGUESS[A]BLE[0-9]+', m.read(end - start))
      except (OSError, OverflowError, MemoryError): pass
  except OSError: pass
print(found[0].decode() if found else input())
"""

# f(most) starts as many processes as it can, and returns how many.
FORKS = """
import os
def f(most):
  n = 0
  try:
    while n < most:
      if os.fork() == 0:
        import time; time.sleep(60)
      n += 1
  except OSError: pass
  return n
"""


FAKES = [program for program in PROGRAMS if program.kind == "fake"]


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program not in FAKES], ids=str)
def test_a_program(sandbox: Sandbox, patient: Sandbox, with_numpy: Sandbox, program: Program) -> None:
    used = with_numpy if program.numpy else sandbox if program.reason else patient
    verdict = used.check(program.program, program.tests, program.cases)
    reasons = ("passed",) if program.passes else (program.reason,) if program.reason else ("failed", "error")
    assert verdict.reason in reasons and verdict.passed == program.passes, verdict
    if program.kind != "corner":
        assert_nothing_runs(used)


@pytest.mark.parametrize("program", FAKES, ids=str)
def test_a_verdict_cannot_be_faked(sandbox: Sandbox, program: Program) -> None:
    verdict = sandbox.check(program.program, program.tests)
    assert not verdict.passed and verdict.reason != "passed", verdict
    assert_nothing_runs(sandbox)


@pytest.mark.parametrize("test", FORGED_OPERATORS.strip().splitlines())
def test_an_object_with_forged_operators_does_not_pass(sandbox: Sandbox, test: str) -> None:
    """Such an object would see the expected value, and claim to equal it."""
    names = "eq lt le gt ge contains sub rsub add radd mul rmul mod pow truediv rtruediv getitem instancecheck"
    methods = "".join(f"  def __{name}__(self, *a): return True\n" for name in names.split())
    rest = "  def __iter__(self): return iter(())\n  def __hash__(self): return 2\ndef f(x): return E()\n"
    program = f"class E:\n{methods}{rest}"
    verdict = sandbox.check(program, [test])
    assert not verdict.passed, verdict


def test_expected_output_is_not_in_the_sandbox(patient: Sandbox) -> None:
    unguessable = "UNGUESSABLE" + "4711"
    assert not patient.check(SEARCHES, [], [Case(stdin="x", stdout=unguessable)]).passed
    assert patient.check(SEARCHES, [], [Case(stdin=unguessable, stdout=unguessable)]).passed, "it does look"


SIZE = LIMITS.output_bytes


@pytest.mark.parametrize(
    ("program", "cases", "reason"),
    [
        ("n = int(input()); print(n * n)", [(str(n), str(n * n)) for n in range(100)], "passed"),
        ("n = int(input()); print(n * n)", [("2", "4"), ("1", "3")], "failed"),
        ("import sys\nfor line in sys.stdin: print(line, end='  \\n\\n')", [("a", "a")], "passed"),
        ("print('a\\x0cb')", [("", "a\nb")], "failed"),
        ("\ufeffprint(4)", [("", "4")], "passed"),
        # Right outputs may be larger than the limit, alone and together, with as much in each case on stderr.
        (
            f"import sys\nprint(input() * {SIZE + 9})\nprint('x' * {SIZE - 9}, file=sys.stderr)",
            [(letter, letter * (SIZE + 9)) for letter in "abc"],
            "passed",
        ),
        # What is not expected counts for all cases together.
        (f"print('a' * {SIZE + 9})", [("", "a")], "output"),
        (f"import sys\nprint('a')\nprint('x' * {SIZE + 9}, file=sys.stderr)", [("", "a")], "output"),
    ],
)
def test_printed_output(patient: Sandbox, program: str, cases: list[tuple[str, str]], reason: str) -> None:
    verdict = patient.check(program, [], [Case(stdin=stdin, stdout=stdout) for stdin, stdout in cases])
    assert verdict.reason == reason, verdict


def test_a_check_with_both_tests_and_cases_needs_both(patient: Sandbox) -> None:
    program, tests = "\ufeffdef f(x): return x", ["assert f(1) == 1"]
    assert patient.check(program, tests, [Case(stdin="", stdout="")]).passed
    assert patient.check(program, tests, [Case(stdin="", stdout="x")]).reason == "failed"
    with pytest.raises(ValueError, match="neither tests nor cases"):
        patient.check(program)


def test_the_processes_of_a_check_are_limited_too(patient: Sandbox) -> None:
    assert patient.check(FORKS, [f"assert 0 < f({LIMITS.processes + 9}) < {LIMITS.processes}"]).passed
    assert_nothing_runs(patient)


@pytest.mark.parametrize(
    ("test", "stubs"),
    [
        ("assert f(3) == 9", set()),
        ("for got, want in zip(f(3), [0, 1, 4]): assert got == want", {"return []", "return ''"}),
        ("xs = [3, 1]\nassert f(xs) == sorted(xs)", {"empty the first argument and return []"}),
        ("try: f(-1)\nexcept ValueError: pass\nelse: assert False", {"raise ValueError", "raise every exception"}),
        ("from solution import g\nassert not g(1)", {"return None", "return 0", "return False"}),
    ],
)
def test_tests_that_pass_for_a_program_that_does_nothing_are_found(
    patient: Sandbox, test: str, stubs: set[str]
) -> None:
    found = set(find_stubs(patient, [test]))
    assert stubs <= found and bool(stubs) == bool(found), found
