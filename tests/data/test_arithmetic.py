import pytest

from megatron_sspo.data.sources import arithmetic
from megatron_sspo.reward.format import extract_answer
from megatron_sspo.reward.math import reward
from megatron_sspo.types import Prompt


def pairs(rows) -> list[tuple[int, int]]:
    return [(row.metadata["a"], row.metadata["b"]) for row in rows]


def scores(rows) -> list[dict[str, float]]:
    judge = reward(exact=True)
    prompts = [Prompt(id=row.id, tokens=(), answer=row.answer) for row in rows]
    return judge.score(prompts, [row.demonstration for row in rows])


def test_rows_are_stable_between_versions() -> None:
    """Checks rows on which all reported held-out results depend."""
    assert [row.question for row in arithmetic.rows(4, seed=0)] == ["63+11=", "68+90=", "42+42=", "83+76="]
    held_out = arithmetic.rows(4, seed=0, split="held_out")
    assert [row.question for row in held_out] == ["6+63=", "78+8=", "82+68=", "24+7="]


def test_splits_are_disjoint_for_every_seed_and_cover_every_pair() -> None:
    train = pairs(arithmetic.rows(20_000, seed=1))
    held_out = pairs(arithmetic.rows(20_000, seed=2, split="held_out"))
    assert not set(train) & set(held_out)
    assert len(set(train) | set(held_out)) == 100**2
    assert 900 <= len(set(held_out)) <= 1100


@pytest.mark.parametrize(
    ("split", "max_operand", "size"), [("train", 99, 8000), ("held_out", 99, 800), ("held_out", 10**6, 500)]
)
def test_pairs_are_drawn_without_replacement(split, max_operand, size) -> None:
    found = pairs(arithmetic.rows(size, seed=5, split=split, max_operand=max_operand))
    assert len(set(found)) == len(found) == size


@pytest.mark.parametrize(
    ("a", "b", "right", "slipped"),
    [
        (12, 34, ("2+4=6 1+3=4", 46), ("2+4=6 1+3=3", 36)),
        (17, 25, ("7+5=12 1+2+1=4", 42), ("7+5=12 1+2=3", 32)),
        (97, 5, ("7+5=12 9+0+1=10", 102), ("7+5=12 9+0=9", 92)),
        (5, 7, ("5+7=12", 12), ("5+7=12", 2)),
        (0, 0, ("0+0=0", 0), ("0+0=1", 1)),
    ],
)
def test_a_sum_is_worked_out(a, b, right, slipped) -> None:
    assert arithmetic.work_out(a, b) == right
    assert arithmetic.work_out(a, b, slip=True) == slipped


def test_demonstrations_earn_the_full_reward() -> None:
    assert scores(arithmetic.rows(2000, seed=3, max_operand=999)) == [{"answer": 1.0, "format": 1.0}] * 2000


@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_wrong_demonstrations_keep_the_format(fraction) -> None:
    rows = arithmetic.rows(2000, seed=3, wrong_fraction=fraction)
    found = scores(rows)
    assert sum(s["answer"] == 0 for s in found) == 2000 * fraction
    assert all(s["format"] == 1 for s in found)
    assert all(row.question == "{}+{}=".format(*pair) for row, pair in zip(rows, pairs(rows), strict=True))
    assert all(row.answer == str(sum(pair)) for row, pair in zip(rows, pairs(rows), strict=True))
    assert all(int(extract_answer(row.demonstration) or "-1") >= 0 for row in rows)
