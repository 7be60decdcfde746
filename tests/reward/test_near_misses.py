"""Answers that look like the gold answer and are not, beside the right ones of the same kind."""

import pytest

from megatron_sspo.reward.answers.verify import is_equivalent


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("2-x", "|x-2|", False),  # the same for x below 2
        ("|x+5|", "x+5", False),
        ("|x+5|", "|5+x|", True),
        ("March 5, 2021", "2021-03-05", True),
        ("2021-03-05", "March 6, 2021", False),
        ("2021-03-05", "2013", False),  # no subtraction
        ("C", "C is not correct", False),
        ("C", "(C) is wrong", False),
        ("C", "C is correct", True),
        ("No", "No idea", False),
        ("No", "No, it is not.", True),
        ("(1,2)", "x=1 or x=2", False),
        ("1,2", "x=1 or x=2", True),
        ("42", "the ln 42", False),
    ],
)
def test_verdicts(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right
