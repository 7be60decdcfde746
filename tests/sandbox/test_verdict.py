"""Tests of verdicts on right programs, wrong programs, and programs that pretend to be right."""

import pytest

from megatron_sspo.sandbox.sandbox import Sandbox
from megatron_sspo.sandbox.types import Case
from tests.sandbox.conftest import LIMITS, assert_nothing_runs
from tests.sandbox.judged_programs import FAKES, FORKS, HONEST, OUTPUTS, PRINTING, SEARCHES, WRONG
from tests.sandbox.known import REFUSED
from tests.sandbox.right_programs import RIGHT, RIGHT_NUMPY


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(patient: Sandbox, name: str) -> None:
    program, tests = HONEST[name]
    verdict = patient.check(program, tests)
    assert verdict.passed and verdict.reason == "passed", verdict
    assert_nothing_runs(patient)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes(patient: Sandbox, name: str) -> None:
    verdict = patient.check(*RIGHT[name])
    assert verdict.passed == (name not in REFUSED), verdict


@pytest.mark.parametrize("name", RIGHT_NUMPY)
def test_a_right_program_with_numpy_passes(with_numpy: Sandbox, name: str) -> None:
    verdict = with_numpy.check(*RIGHT_NUMPY[name])
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_fails_for_its_reason(sandbox: Sandbox, name: str) -> None:
    program, tests, reason = WRONG[name]
    verdict = sandbox.check(program, tests)
    assert (verdict.passed, verdict.reason) == (False, reason), verdict
    assert_nothing_runs(sandbox)


@pytest.mark.parametrize("name", FAKES)
def test_a_verdict_cannot_be_faked(sandbox: Sandbox, name: str) -> None:
    verdict = sandbox.check(FAKES[name], ["assert f(1) == 2"])
    assert not verdict.passed and verdict.reason != "passed", verdict
    assert_nothing_runs(sandbox)


@pytest.mark.parametrize(
    "test",
    [
        "assert abs(f(1) - 2.0) < 1e-6",
        "assert 2 - f(1) == 0",
        "assert 2 in f(1)",
        "assert f(1) < 3",
        "assert f(1) in (2, 3)",
        "assert f(1) == [2]",
        "assert (f(1), 1) == (2, 1)",
        "assert {f(1)} == {2}",
        "assert sorted(f(1)) == [1, 2]",
        "import math\nassert math.isclose(f(1), 2)",
        "assert f(1) is True",
        "assert isinstance(f(1), int)",
        "assert type(f(1)) is int",
        "assert f(1) >= 2 and f(1) <= 2",
        "assert round(f(1), 3) == 2",
        "assert str(f(1)) == '2'",
    ],
)
def test_an_object_with_forged_operators_does_not_pass(sandbox: Sandbox, test: str) -> None:
    """Such an object would see the expected value, and claim to equal it."""
    names = "eq lt le gt ge contains sub rsub add radd mul rmul mod pow truediv rtruediv getitem instancecheck"
    methods = "".join(f"  def __{name}__(self, *a): return True\n" for name in names.split())
    rest = "  def __iter__(self): return iter(())\n  def __hash__(self): return 2\ndef f(x): return E()\n"
    program = f"class E:\n{methods}{rest}"
    verdict = sandbox.check(program, [test])
    assert not verdict.passed, verdict


@pytest.mark.parametrize("name", PRINTING)
def test_a_case_runs_as_an_ordinary_program_and_does_not_affect_the_next(sandbox: Sandbox, name: str) -> None:
    cases = [Case(stdin=f"{number}\n", stdout=f"{number + 1}\n") for number in (1, 2, 3)]
    verdict = sandbox.check(PRINTING[name], cases=cases)
    assert verdict.passed, verdict
    assert_nothing_runs(sandbox)


def test_printed_output_is_compared_outside_of_the_sandbox(patient: Sandbox) -> None:
    right = "print(int(input()) * 2)"
    cases = [Case(stdin="2\n", stdout="4\n"), Case(stdin="5", stdout="10")]
    assert patient.check(right, [], cases).passed
    assert patient.check(
        "import sys\nfor line in sys.stdin: print(line, end='  \\n\\n')", [], [Case(stdin="a", stdout="a")]
    ).passed
    assert patient.check("print('a\\x0cb')", [], [Case(stdin="", stdout="a\nb")]).reason == "failed"
    assert patient.check(right, [], [*cases, Case(stdin="1", stdout="3")]).reason == "failed"
    assert patient.check("def f(x): return x", ["assert f(1) == 1"], [Case(stdin="", stdout="")]).passed
    assert patient.check("def f(x): return x", ["assert f(1) == 1"], [Case(stdin="", stdout="x")]).reason == "failed"


@pytest.mark.parametrize(("program", "reason"), OUTPUTS)
def test_a_program_whose_output_is_judged(sandbox: Sandbox, program: str, reason: str) -> None:
    verdict = sandbox.check(program, [], [Case(stdin="2", stdout="4")])
    assert (verdict.passed, verdict.reason) == (False, reason), verdict
    assert_nothing_runs(sandbox)


def test_expected_output_is_not_in_the_sandbox(patient: Sandbox) -> None:
    unguessable = "UNGUESSABLE" + "4711"
    assert not patient.check(SEARCHES, [], [Case(stdin="x", stdout=unguessable)]).passed
    assert patient.check(SEARCHES, [], [Case(stdin=unguessable, stdout=unguessable)]).passed, "it does look"


def test_many_cases_share_one_sandbox(patient: Sandbox) -> None:
    cases = [Case(stdin=str(n), stdout=str(n * n)) for n in range(100)]
    assert patient.check("n = int(input()); print(n * n)", [], cases).passed


def test_the_limit_on_output_holds_for_each_case(sandbox: Sandbox) -> None:
    """Right outputs of many cases may be larger together; what is not expected counts for all cases together."""
    program = f"print(input() * {LIMITS.output_bytes - 100})"
    right = [Case(stdin=letter, stdout=letter * (LIMITS.output_bytes - 100)) for letter in "abcd"]
    verdict = sandbox.check(program, [], right)
    assert verdict.passed, verdict
    assert sandbox.check(program, [], [Case(stdin="ab", stdout="")]).reason == "output"
    wrong = [Case(stdin="\n", stdout=""), *(Case(stdin=letter, stdout="") for letter in "abcd")]
    assert not sandbox.check(program, [], wrong).passed


def test_the_limit_on_output_is_for_what_is_not_expected(sandbox: Sandbox) -> None:
    """A program may print more than the limit if it has to, and in each case as much to stderr."""
    size = LIMITS.output_bytes
    program = f"import sys\nprint(input() * {size + 9})\nprint('x' * {size - 9}, file=sys.stderr)"
    verdict = sandbox.check(program, [], [Case(stdin=letter, stdout=letter * (size + 9)) for letter in "abc"])
    assert verdict.passed, verdict
    assert sandbox.check(f"print('a' * {size + 9})", [], [Case(stdin="", stdout="a")]).reason == "output"
    floods = f"import sys\nprint('a')\nprint('x' * {size + 9}, file=sys.stderr)"
    assert sandbox.check(floods, [], [Case(stdin="", stdout="a")]).reason == "output"


def test_a_byte_order_mark_is_ignored(sandbox: Sandbox) -> None:
    assert sandbox.check("\ufeffdef f(x): return x", ["assert f(1) == 1"]).passed
    assert sandbox.check("\ufeffprint(4)", [], [Case(stdin="", stdout="4")]).passed


def test_the_processes_of_a_check_are_limited_too(patient: Sandbox) -> None:
    assert patient.check(FORKS, [f"assert 0 < f({LIMITS.processes + 9}) < {LIMITS.processes}"]).passed
    assert_nothing_runs(patient)


def test_a_check_without_tests_and_cases_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="neither tests nor cases"):
        sandbox.check("pass")
