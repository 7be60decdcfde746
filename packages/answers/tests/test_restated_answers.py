"""Answers that state one value in two notations, announce it after steps, or remark where a formula holds."""

import pytest

from sspo_answers.verify import is_equivalent


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\frac{5}{2}", r"\frac{5}{2} (or 2.5)", True),
        (r"\frac{5}{2}", r"\frac{5}{2} (or 2.6)", False),
        ("1/4", r"\frac{1}{4} \text{ or } 25\%", True),
        ("1/4", "1/4, or equivalently 0.25", True),
        ("1/4", "0.25, i.e., 1/4", True),
        ("1/4", "1/4 (25%)", True),
        ("1/4", "1/4 or 0.26", False),
        ("1/4", "1/4 or 1/3", False),
        ("1/4", "0.26 or 1/4", False),
        ("1.5", "1.5 hours (90 minutes)", True),
        ("1.5", "1.5 hours (80 minutes)", False),
        ("12", "12 cm or 12 m", False),
        ("5", "5%, or 5", False),
        ("0.05", "5%, or 0.05", True),
        ("5", "5 or", False),
        ("11/36", "11/36 (≈ 30.6%)", True),
        ("11/36", r"\frac{11}{36} or about $30.6\%$", True),
        ("11/36", "11/36 (≈ 31.6%)", False),
        ("11/36", "11/36 (≈ 0.306%)", False),
        ("11/36", "11/36 (≈ 30.6)", False),
        ("50", "50 (about 0.5)", False),
        ("12", "twelve (12)", True),
        ("12", "12 (13)", False),
        ("3", "3 (mod 7)", False),
        ("3", "3 or -3", False),
        ("3", "3, or about 3.2", False),
        ("3", "about 3 or 3.0", False),
        ("42", "42 or 42 million", False),
        ("42", "42, which is half of 84", False),
        ("n", "n (n)", False),
        ("A", "A (or B)", False),
        ("Yes", "Yes (no)", False),
        (r"2\sqrt{3}", r"2\sqrt{3} (approximately 3.46)", True),
        (r"2\sqrt{3}", r"2\sqrt{3}, which is about 3.46", True),
        (r"2\sqrt{3}", r"2\sqrt{3} (\approx 3.46)", True),
        (r"2\sqrt{3}", r"2\sqrt{3} (approximately 3.47)", False),
        (r"2\sqrt{3}", r"2\sqrt{3}, or about 4", False),
        (r"2\sqrt{3}", r"2\sqrt{2} (approximately 3.46)", False),
        (r"\sqrt{13} \text{ cm}", r"\sqrt{13} \approx 3.61 \text{ cm}", True),
        (r"\sqrt{13} \text{ cm}", r"\sqrt{13} \text{ cm} \approx 3.61 \text{ cm}", True),
        (r"\sqrt{13} \text{ cm}", r"\sqrt{13} \approx 3.61 \text{ m}", False),
        (r"\sqrt{13} \text{ cm}", r"\sqrt{13} \approx 3.16 \text{ cm}", False),
    ],
)
def test_a_value_in_two_notations(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("96", "- Case 1: 32\n- Case 2: 64\n\nTotal: **96**", True),
        ("96", "We add 32 and 64.\n\n**Answer:** 96", True),
        ("96", "32 + 64 = 96\n\nThe final answer is 96.", True),
        ("96", "We add 32 and 64.\n\nAnswer: not 96", False),
        ("96", "We add 32 and 64.\n\nAnswer: 96 or 97", False),
        ("96", "Answer: 95\n\nAnswer: 96", False),
        ("96", "Case 1: 95\nCase 2: 96", False),
        ("96", "Total: 96\nMinus two", False),
        ("17", r"First we get \boxed{12}. Then the final answer is \boxed{17}.", True),
        ("17", "\\boxed{12} balls.\n### Final Answer\n$$\\boxed{17}$$", True),
        ("12", r"First we get \boxed{12}. Then the final answer is \boxed{17}.", False),
        ("17", r"The final answer is \boxed{18}. The final answer is \boxed{17}.", False),
        ("17", r"The answer is \boxed{18}. The final answer is \boxed{17}.", False),
        ("17", r"\boxed{18} Final answer: \boxed{17} \boxed{16}", False),
        ("17", r"\boxed{18} \boxed{17}", False),
        ("12", "$n = 12$ is the only solution.", True),
        ("12", "$n = 12$ is not the only solution.", False),
        ("648", r"Therefore, the number of three-digit numbers is $9 \cdot 9 \cdot 8 = 648$.", True),
        ("648", "The number of non-zero digits is 647.", False),
        ("5", "x = 5 (which is the only root)", True),
        ("5", "x = 5 (which is not the only root)", False),
        ("5", "5, which satisfies the equation", True),
        ("5", "5, as required", True),
        ("5", "5, as required by 6", False),
        ("18", "She makes $18 every day at the farmers' market.", True),
        ("18", "18'", False),
    ],
)
def test_the_conclusion_after_steps(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\frac{x+1}{x-1}", r"\frac{x+1}{x-1}, \quad x\neq 1", True),
        (r"\frac{x+1}{x-1}", r"\frac{x+1}{x-1} (x \neq 1, -1)", True),
        (r"\frac{x+1}{x-1}", r"\frac{x+1}{x-1} for x \neq \pm 1", True),
        (r"\frac{x+1}{x-1}", r"\frac{x-1}{x+1}, x \neq 1", False),
        ("1<x<3", r"1<x<3, x\ne 2", False),
        ("(1,3)", r"(1,3), x\ne 2", False),
        ("y=2x", r"y=2x, x\ne 0", False),
        ("x", r"x\ne 2", False),
        ("2^n-1", r"2^n-1 \text{ for all } n \ge 1", True),
        ("2^n-1", r"2^n-1 for positive integers n", True),
        ("2^n-1", r"2^n-1 \text{ for } n \ge 5", False),
        ("2^n-1", r"2^n, n \ge 1", False),
        (r"\frac{1}{1-x}, |x|<1", r"\frac{1}{1-x} \text{ for } |x|<1", True),
        (r"\frac{1}{1-x}, |x|<1", r"\frac{1}{1-x} \text{ for } |x|<2", False),
    ],
)
def test_where_a_formula_holds(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("2.5 hours", "two and a half hours", True),
        ("2.5 hours", "two and a half minutes", False),
        ("2.5", "two and a half times", False),
        ("2.5", "two and a half million", False),
        ("30 minutes", "half an hour", True),
        ("30 minutes", "half an hour late", False),
        ("$4.50", "four dollars and fifty cents", True),
        ("$4.50", "four dollars and fifteen cents", False),
        ("5 feet 10 inches", "5'10''", True),
        ("5 feet 10 inches", "5'11''", False),
        ("Quadrant II", "the second quadrant", True),
        ("Quadrant II", "the third quadrant", False),
        ("converges", "The series is convergent.", True),
        ("converges", "The series does not converge.", False),
        ("Infinite", "infinitely many", True),
        ("Mean = 5, Median = 4", "mean: 5, median: 4", True),
        ("Mean = 5, Median = 4", "mean: 4, median: 5", False),
    ],
)
def test_quantities_in_words(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("12", "There are 3 rows of 4 chairs. So there are 12 chairs.", True),
        ("12", "There are 3 rows of 4 chairs.\nSo there are 13 chairs.", False),
        ("12", "There are 3 rows of 4 chairs.\nSo there are at least 12 chairs.", False),
        ("12", "We have $a=3$ and $b=4$.\n\nTherefore $ab = 12$.", True),
        ("4", "We have $a=3$ and $b=4$.\n\nTherefore $ab = 12$.", False),
        ("12", "The side is 24/2 = 12. So the answer is **12**.", True),
        ("12", "The answer is 13. So the answer is 12.", False),
        ("12", "13\nSo 12", False),
        ("12", "13\nThe answer is 12", False),
        ("12", "13. Answer: 12", False),
        ("12", "$12$\n\nThe answer is 12.", True),
        ("B", "C. The answer is B.", False),
        ("no", "Yes. The answer is no.", False),
        ("no", "No. The answer is no.", True),
        ("(1,2)", "(2,1). The answer is (1,2).", False),
        ("12", "Each of 3 friends gets 4. In total: 12.", True),
        ("12", "Since 3+4=7 and 7+5=12, the answer is 12.", True),
        ("12", "Because $x+3=15$, we get $x=12$.", True),
        ("12", "The roots are 3 and 4, hence their product is 12.", True),
        ("12", "If repetition is allowed, the answer is 12.", False),
        ("12", "It is 12 or 13, so the answer is 12.", False),
        ("12", "Between 11 and 13, so 12", False),
        ("12", "x=12, so the answer is not 12", False),
        ("2,3", "(x-2)(x-3)=0. Hence x=2 or x=3.", True),
        ("2", "(x-2)(x-3)=0. Hence x=2 or x=3.", False),
        ("B", "A is too small. Hence B.", True),
        ("B", "C is too small. Hence B is wrong.", False),
        ("12", "有3行，每行4把。所以共有12把椅子。", True),
        ("12", "因为3×4=12，所以答案是12。", True),
        ("12", "因为3×4=12，所以答案不是12。", False),
    ],
)
def test_the_last_sentence_or_clause_concludes(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("12", "Answer: 12\n\nExplanation: There are 3 rows of 4 chairs.", True),
        ("12", "12\n\n**Note:** we assumed 3 rows.", True),
        ("12", "The answer is 12\n\nConfidence: 95%", True),
        ("12", "The answer is 12. We multiply 3 by 4.", True),
        ("(1,2)", "Answer: $(1,2)$. To see this, put $x=1$.", True),
        ("12", "Answer: 13\n\nNote: 12", False),
        ("12", "Answer: 12\n\nNote: actually it is 13.", False),
        ("12", "The answer is 12. This is wrong. It is 13.", False),
        ("12", "The answer is 12. We multiply 3 by 4. But it is 13.", False),
        ("12", "The answer is 12 for n=2. In general it is n+10.", False),
        ("3", "There are 3 rows. We multiply by 4 to get 12.", False),
        ("12", "Answer: Alice has 12. Bob has 13.", False),
    ],
)
def test_an_explanation_after_the_answer_changes_nothing(gold: str, answer: str, right: bool) -> None:
    assert is_equivalent((gold, answer)) is right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("7", "$2x + 1 = 15$\n$2x = 14$\n$x = 7$", True),
        ("14", "2x + 1 = 15\n2x = 14\nx = 7", False),
        ("7", r"\begin{aligned} 2x+1 &= 15 \\ 2x &= 14 \\ x &= 7 \end{aligned}", True),
        ("7", "2x = 14, x = 7, x = 8", False),
        ("7", "x = 8, 2x = 14, x = 7", False),
        ("3", "x+y=5, x=3", False),
        ("3", "2y=4, x=3", False),
        ("2,3", "x^2-5x+6=0, x=2, x=3", True),
        ("2", "x^2-5x+6=0, x=2, x=3", False),
        ("-3", "x=2, x=-3", False),
        ("x^2+1=0, x=3", "x=3", False),
        ("64", "5 * 8 = 40\n3 * 8 = 24\n40 + 24 = 64", True),
        ("64", "5 * 8 = 40\n3 * 8 = 24\n40 + 24 = 65", False),
        ("40", "5 * 8 = 40\n3 * 8 = 24\n40 + 24 = 64", False),
        ("8", "6+1=7, 6+2=8", False),
        ("x+y=3, x-y=1", "x+y=3\nx-y=1", True),
        ("7", "\\a" * 900 + "\n", False),
    ],
)
def test_of_several_equations_the_last_is_the_answer_if_the_others_are_its_steps(
    gold: str, answer: str, right: bool
) -> None:
    assert is_equivalent((gold, answer)) is right
