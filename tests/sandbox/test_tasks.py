"""Tests that right programs pass and wrong ones fail, for many forms of tests."""

import pytest

from megatron_sspo.sandbox.sandbox import Sandbox
from megatron_sspo.sandbox.types import Case
from tests.sandbox.corners import CORNERS, WEAK
from tests.sandbox.known import ACCEPTED, REFUSED
from tests.sandbox.tasks import FUNCTIONS, SCRIPTS, Task

TASKS = FUNCTIONS + SCRIPTS


def test_there_are_two_hundred_programs() -> None:
    assert len(TASKS) == 100 and len({name for name, *_ in TASKS}) == 100


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task[0])
def test_a_right_program_passes_and_a_wrong_one_does_not(patient: Sandbox, task: Task) -> None:
    name, right, wrong, checks = task
    tests = [check for check in checks if isinstance(check, str)]
    cases = [Case(stdin=check[0], stdout=check[1]) for check in checks if not isinstance(check, str)]
    verdict = patient.check(right, tests, cases)
    assert verdict.passed == (name not in REFUSED), verdict
    verdict = patient.check(wrong, tests, cases)
    assert verdict.reason in (("passed",) if name in ACCEPTED else ("failed", "error")), verdict


@pytest.mark.parametrize("number", range(len(CORNERS)))
def test_a_corner_case_is_judged_correctly(patient: Sandbox, number: int) -> None:
    program, tests, kind = CORNERS[number]
    verdict = patient.check(program, tests)
    assert verdict.passed == (kind in (1, WEAK)), (program, tests, verdict)
