"""Wrong programs that a careless harness would pass."""

import pytest

from megatron_sspo.sandbox.sandbox import Sandbox
from tests.sandbox.vacuous_programs import VACUOUS, VACUOUS_NUMPY


@pytest.mark.parametrize("name", VACUOUS)
def test_a_wrong_program_does_not_pass(patient: Sandbox, name: str) -> None:
    verdict = patient.check(*VACUOUS[name])
    assert not verdict.passed and verdict.reason in ("failed", "error"), verdict


@pytest.mark.parametrize("name", VACUOUS_NUMPY)
def test_a_wrong_program_does_not_pass_a_test_with_numpy(with_numpy: Sandbox, name: str) -> None:
    verdict = with_numpy.check(*VACUOUS_NUMPY[name])
    assert not verdict.passed and verdict.reason in ("failed", "error"), verdict
