"""Wrong programs that a careless harness would pass; some do here too, since their tests do not notice."""

import pytest

from megatron_sspo.sandbox.sandbox import Sandbox
from tests.sandbox.known import ACCEPTED
from tests.sandbox.vacuous_programs import VACUOUS, VACUOUS_NUMPY


@pytest.mark.parametrize("name", VACUOUS)
def test_a_wrong_program(patient: Sandbox, name: str) -> None:
    verdict = patient.check(*VACUOUS[name])
    assert verdict.reason in (("passed",) if name in ACCEPTED else ("failed", "error")), verdict


@pytest.mark.parametrize("name", VACUOUS_NUMPY)
def test_a_wrong_program_with_numpy(with_numpy: Sandbox, name: str) -> None:
    verdict = with_numpy.check(*VACUOUS_NUMPY[name])
    assert verdict.reason in (("passed",) if name in ACCEPTED else ("failed", "error")), verdict
