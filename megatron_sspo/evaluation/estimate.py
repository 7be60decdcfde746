"""Shares of right answers, and how far off they may be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959963984540054  # of a normal distribution, 95 % lie within so many standard deviations


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share in [0, 1] with a 95 % interval."""

    mean: float
    low: float
    high: float


def greedy_pass(correct: Sequence[bool]) -> Estimate:
    """pass@1 of one greedy answer a prompt: the share that is right, with Wilson's interval."""
    return _estimate([float(value) for value in correct], answers=1)


def sampled_avg(num_correct: Sequence[int], num_samples: int) -> Estimate:
    """avg@k: the mean over prompts of c/k, where c of k sampled answers are right.

    Args:
        num_correct: c of each prompt.
        num_samples: k.
    """
    return _estimate([count / num_samples for count in num_correct], answers=num_samples)


def sampled_pass(num_correct: Sequence[int], num_samples: int, draws: int) -> Estimate:
    """pass@j out of k samples: the mean over prompts of 1 - C(k - c, j) / C(k, j), which has no bias.

    It is the chance that j of a prompt's k answers, drawn without replacement, hold a right one (Chen et al.,
    "Evaluating Large Language Models Trained on Code", arXiv 2107.03374).

    Args:
        num_correct: c of each prompt.
        num_samples: k.
        draws: j, at most k.
    """
    chances = [1 - math.comb(num_samples - count, draws) / math.comb(num_samples, draws) for count in num_correct]
    return _estimate(chances, answers=num_samples // draws)


def _estimate(values: Sequence[float], answers: int) -> Estimate:
    """The mean of a value a prompt, with Wilson's interval for as many trials as the values' spread stands for.

        p = mean x_i,   m = n · p(1-p) / mean (x_i - p)²,   n ≤ m ≤ n · answers

        (p + z²/2m ± z √(p(1-p)/m + z²/4m²)) / (1 + z²/m)

    Prompts are what is drawn, so the answers to one prompt count as one where they agree (m = n), and as many where
    they are independent. With one answer a prompt m is n, and this is Wilson's interval itself (JASA 22, 1927); the
    number of trials that a clustered sample is worth is Kish's effective sample size ("Survey Sampling", 1965). Unlike
    the mean plus and minus two standard errors it stays within [0, 1] and is not empty where all answers are wrong.

    Args:
        answers: independent answers that a value may stand for at most.
    """
    count = len(values)
    mean = min(1.0, math.fsum(values) / count)
    spread = sum((value - mean) ** 2 for value in values) / count
    variance = mean * (1 - mean)
    fewest, most = count, count * answers
    if variance <= 0:  # all right or all wrong: nothing shows that answers to one prompt differ
        trials = fewest
    else:
        trials = min(max(count * variance / spread, fewest), most) if spread > 0 else most
    centre = mean + _Z**2 / (2 * trials)
    reach = _Z * math.sqrt(variance / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    return Estimate(mean, max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale))
