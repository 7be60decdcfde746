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
        ("60 mph", "60 km/h", False),
        ("60 mph", "60 miles per hour", True),
        ("5 m/s", "5 m/s^2", False),
        ("5 m/s", r"5\,\mathrm{m\,s^{-1}}", True),
        ("$5", "5 dollars per hour", True),
        ("2 L", "2 mL", False),
        (r"100\,\Omega", r"100\,k\Omega", False),
        (r"100\,\Omega", "100 ohms", True),
        ("20°C", "20°F", False),
        ("20°C", "20 degrees", True),
        ("300", "300 K", True),
        ("25 cents", "25¢", True),
        ("17", r"2\boxed{17}", False),
        ("17", r"$-\boxed{17}$", False),
        ("-17", r"$-\boxed{17}$", True),
        ("17", r"\sqrt{\boxed{17}}", False),
        ("17", r"\boxed{17}^2", False),
        ("16", r"\boxed{16}_8", False),
        ("17", r"It is not \boxed{17}.", False),
        ("17", r"\boxed{\boxed{17}, 18}", False),
        ("17", r"\boxed{\text{It is }\boxed{17}}", True),
        ("17", "Step 2\n- \\boxed{17}", True),
        ("17", r"$3+14=\boxed{17}$", True),
    ],
)
def test_verdicts(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right
