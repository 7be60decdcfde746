"""Measures the math reward: verifications per second by kind of answer, and the delay of a deadline.

    python benchmarks/math_reward.py                       # 2 workers, 1,000 answers of each kind, deadline 2 s
    python benchmarks/math_reward.py --count 5000 --workers 8

All answers are different, so that no cache helps. "numbers" are compared in the trainer's process; "LaTeX" in the
workers, by values; "half and half" mixes both. "with bombs" adds matrices to the LaTeX, which math-verify compares and
never finishes; each costs its deadline and a new worker. The latency is that of one answer alone; after a bomb it
includes the start of a worker. The last line is about bombs alone, one at a time: the longest time until a bomb's
process has ended. The exit code is 1 if that is more than 1.1 deadlines.
"""

import argparse
import logging
import os
import random
import sys
import time
from collections.abc import Sequence
from statistics import median

from megatron_sspo.reward.math import MathReward
from megatron_sspo.types import Prompt
from sspo_answers.pool import DeadlinePool
from sspo_answers.verify import is_equivalent, prepare

Pair = tuple[str, str]  # gold answer and answer

_BOMBS = tuple(
    rf"2\begin{{pmatrix}}{entry}\end{{pmatrix}}"
    for entry in ("9^{9^{9^{9}}}", "(10^8)!", "123456789^{987654321}", "8^{8^{8^{8}}}")
)


def numbers(draw: random.Random, count: int) -> list[Pair]:
    forms = ("{}", "{}.0", "${}$", r"\boxed{{{}}}", "{} apples", "The answer is {}.", "x = {}", r"\$ {:,}", "{:,}")
    return [(str(n), draw.choice(forms).format(n + draw.randrange(2))) for n in range(1000, 1000 + count)]


def latex(draw: random.Random, count: int) -> list[Pair]:
    forms = (
        (r"{n}\sqrt{{3}}", r"\sqrt{{{square}}}"),
        (r"\frac{{x+{n}}}{{2}}", r"\frac{{x}}{{2}}+\frac{{{n}}}{{2}}"),
        (r"(x+1)(x+{n})", r"x^2+{next}x+{n}"),
        (r"{n}\pi", r"\frac{{{double}\pi}}{{2}}"),
        (r"\left({n}, \sqrt{{2}}\right)", r"({n}, \frac{{2}}{{\sqrt{{2}}}})"),
        (r"e^{{-{n}}}", r"\frac{{1}}{{e^{{{n}}}}}"),
    )
    found: list[Pair] = []
    for n in range(2, 2 + count):
        values = {"n": n, "next": n + 1, "double": 2 * n, "square": 3 * n * n}
        gold, answer = draw.choice(forms)
        found.append((gold.format(**values), answer.format(**values)))
    return found


def throughput(reward: MathReward, pairs: Sequence[Pair]) -> float:
    """Returns answers per second, scored as one batch."""
    started = time.perf_counter()
    score(reward, pairs)
    return len(pairs) / (time.perf_counter() - started)


def latencies(reward: MathReward, pairs: Sequence[Pair]) -> list[float]:
    """Returns the milliseconds of each answer scored alone, sorted."""

    def timed(pair: Pair) -> float:
        started = time.perf_counter()
        score(reward, [pair])
        return (time.perf_counter() - started) * 1000

    return sorted(map(timed, pairs))


def score(reward: MathReward, pairs: Sequence[Pair]) -> None:
    prompts = [Prompt(id=str(number), tokens=(1,), answer=gold) for number, (gold, _) in enumerate(pairs)]
    reward.score(prompts, [f"<think>hm</think> <answer>{answer}</answer>" for _, answer in pairs])


def latest(deadline: float, count: int) -> float:
    """Returns the longest time from a bomb's start to the end of its process, as a multiple of the deadline."""
    with DeadlinePool(is_equivalent, 1, deadline, False, prepare) as pool:
        pool.map([("x", "y+1")])
        seconds: list[float] = []
        for number in range(count):
            pool.map([("x", f"y+{number + 2}")])  # waits until a new worker has started
            started = time.perf_counter()
            pool.map([(_small_matrix(number), _BOMBS[number % len(_BOMBS)])])
            seconds.append(time.perf_counter() - started)
    return max(seconds) / deadline


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="answers of each kind; default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, help="processes that compare formulas; default: %(default)s")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds; default: %(default)s")
    parser.add_argument("--bombs", type=int, default=8, help="bombs; default: %(default)s")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # otherwise one line per bomb
    print(f"{options.workers} workers, deadline {options.deadline} s, {os.cpu_count()} cores, load {_load()}")
    print(f"{'':14} {'a second':>9} {'median ms':>10} {'p99 ms':>8}")
    draw = random.Random(0)
    plain, formulas = numbers(draw, 2 * options.count), latex(draw, 2 * options.count)
    kinds = {"numbers": plain, "LaTeX": formulas}
    kinds["half and half"] = [pair for both in zip(plain, formulas, strict=True) for pair in both][: 2 * options.count]
    every = max(1, 2 * options.count // options.bombs)
    kinds["with bombs"] = [
        (_small_matrix(number), _BOMBS[number // every % len(_BOMBS)]) if number % every == every - 1 else pair
        for number, pair in enumerate(formulas)
    ]
    for name, pairs in kinds.items():
        pool = DeadlinePool(is_equivalent, options.workers, options.deadline, False, prepare)
        pool.map([("x", f"y+{number}") for number in range(4 * options.workers)])  # so that imports are not timed
        reward = MathReward(pool)
        rate = throughput(reward, pairs[: len(pairs) // 2])
        each = latencies(reward, pairs[len(pairs) // 2 :])
        reward.close()
        print(f"{name:14} {rate:9.0f} {median(each):10.2f} {each[int(0.99 * len(each))]:8.1f}", flush=True)
    worst = latest(options.deadline, options.bombs)
    print(f"the latest of {options.bombs} bombs ended after {worst:.3f} deadlines; load {_load()}")
    return int(worst > 1.1)


def _small_matrix(entry: int) -> str:
    return rf"2\begin{{pmatrix}}{entry}\end{{pmatrix}}"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
