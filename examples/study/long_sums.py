"""Sums of several numbers, worked out step by step: the source of the study's long responses (docs/study.md, e)."""

import hashlib
import random

from megatron_sspo.data.row import Row
from megatron_sspo.data.sources.arithmetic import work_out

_OPERANDS = (10, 99)  # the smallest and the largest
_NUM_OPERANDS = (4, 5)  # responses of 60 to 120 tokens, one a character


def rows(size: int, seed: int = 0, split: str = "train", wrong_fraction: float = 0.0) -> list[Row]:
    """Returns questions such as "17+25+90+8=" with the gold answer and a worked demonstration; no question twice.

    A hash of the question decides its split, independently of the seed: about one in ten is held out.

    Args:
        size: number of rows.
        seed: seed of the draw.
        split: "train" or "held_out".
        wrong_fraction: share of the demonstrations in which one addition has a mistake, with which the later ones go
            on. The gold answer is still right.
    """
    draw = random.Random(seed)
    sums = _draw_sums(draw, size, split)
    slips = set(draw.sample(range(size), round(size * wrong_fraction)))
    return [
        Row(
            id=f"long_sums/{split}/{seed}:{number + 1}",
            question=f"{'+'.join(map(str, operands))}=",
            answer=str(sum(operands)),
            demonstration=demonstrate(operands, slip=draw.randrange(1, len(operands)) if number in slips else 0),
        )
        for number, operands in enumerate(sums)
    ]


def demonstrate(operands: tuple[int, ...], *, slip: int = 0) -> str:
    """Returns the additions one after the other, each digit by digit, and the answer.

    "<think>17+25 7+5=12 1+2+1=4, 42+90 2+0=2 4+9=13</think> <answer>132</answer>" for 17+25+90.

    Args:
        operands: the numbers.
        slip: the addition with a mistake, the first of which is 1; 0 for none.
    """
    total, *others = operands
    steps: list[str] = []
    for number, operand in enumerate(others, 1):
        worked, result = work_out(total, operand, slip=number == slip)
        steps.append(f"{total}+{operand} {worked}")
        total = result
    return f"<think>{', '.join(steps)}</think> <answer>{total}</answer>"


def _draw_sums(draw: random.Random, size: int, split: str) -> list[tuple[int, ...]]:
    found: dict[tuple[int, ...], None] = {}  # in the order of the draw
    while len(found) < size:
        operands = tuple(draw.randint(*_OPERANDS) for _ in range(draw.choice(_NUM_OPERANDS)))
        if _is_held_out(operands) == (split == "held_out"):
            found[operands] = None
    return list(found)


def _is_held_out(operands: tuple[int, ...]) -> bool:
    digest = hashlib.blake2b(repr(operands).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 10 == 0
