"""Sums of two integers, for models of a few million parameters that are trained from random weights."""

import hashlib
import itertools
import random
from typing import Literal

from megatron_sspo.data.row import Row

_HELD_OUT_SHARE = {"train": 9, "held_out": 1}  # number of pairs in ten


def rows(
    size: int,
    seed: int = 0,
    split: Literal["train", "held_out"] = "train",
    max_operand: int = 99,
    wrong_fraction: float = 0.0,
) -> list[Row]:
    """Returns questions such as "12+34=" with the gold answer and a worked demonstration.

    A hash of the pair (a, b) decides its split, independently of the seed: about one in ten is held out. Pairs are
    drawn without replacement, and repeat only if `size` exceeds the number of pairs in the split.

    Args:
        size: number of rows.
        seed: seed of the draw and of the order.
        split: "train" or "held_out".
        max_operand: largest operand; both integers are in [0, max_operand].
        wrong_fraction: share of the demonstrations that contain a mistake, so that a warm start teaches the format but
            not the sums. The gold answer is still right.
    """
    draw = random.Random(seed)
    pairs = _draw_pairs(draw, size, split, max_operand)
    slips = set(draw.sample(range(size), round(size * wrong_fraction)))
    return [
        Row(
            id=f"arithmetic/{split}/{seed}:{number + 1}",
            question=f"{a}+{b}=",
            answer=str(a + b),
            demonstration=demonstrate(a, b, slip=number in slips),
            metadata={"a": a, "b": b},
        )
        for number, (a, b) in enumerate(pairs)
    ]


def demonstrate(a: int, b: int, *, slip: bool = False) -> str:
    """Returns a worked sum: "<think>7+5=12 1+2+1=4</think> <answer>42</answer>" for 17+25; `slip` as in `work_out`."""
    steps, answer = work_out(a, b, slip=slip)
    return f"<think>{steps}</think> <answer>{answer}</answer>"


def work_out(a: int, b: int, *, slip: bool = False) -> tuple[str, int]:
    """Adds two numbers digit by digit, ones first: returns ("7+5=12 1+2+1=4", 42) for 17+25.

    With `slip` the first carry is dropped; without any carry, the leading column is off by one.
    """
    width = max(len(str(a)), len(str(b)))
    columns = [(a // 10**place % 10, b // 10**place % 10) for place in range(width)]
    has_carry = any(sum(column) > 9 for column in columns)
    steps: list[str] = []
    answer = carry = 0
    for place, (x, y) in enumerate(columns):
        total = x + y + carry
        if slip and not has_carry and place == width - 1:
            total += 1 if total == 0 else -1
        steps.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        answer += total % 10 * 10**place
        carry = total // 10
        if slip and carry:
            carry, slip = 0, False
    return " ".join(steps), answer + carry * 10**width


def _draw_pairs(draw: random.Random, size: int, split: str, max_operand: int) -> list[tuple[int, int]]:
    values = max_operand + 1
    # Twice the expected number: fewer pairs than `size` then means that all pairs of a small range were drawn.
    num_candidates = min(values**2, 2 * size * 10 // _HELD_OUT_SHARE[split] + 1000)
    candidates = (divmod(index, values) for index in draw.sample(range(values**2), num_candidates))
    pairs = [(a, b) for a, b in candidates if _is_held_out(a, b) == (split == "held_out")]
    return list(itertools.islice(itertools.cycle(pairs), size))


def _is_held_out(a: int, b: int) -> bool:
    digest = hashlib.blake2b(f"{a}+{b}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 10 < _HELD_OUT_SHARE["held_out"]
