"""Shares of correct answers, with confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959963984540054  # 95 % of a normal distribution lie within this many standard deviations


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share in [0, 1] with a 95 % interval."""

    mean: float
    low: float
    high: float


def greedy_pass(correct: Sequence[bool]) -> Estimate:
    """Estimates pass@1 from one greedy answer per prompt: the share of correct answers, with Wilson's interval."""
    return sampled_avg([int(value) for value in correct], 1)


def sampled_avg(num_correct: Sequence[int], num_samples: int) -> Estimate:
    """Estimates avg@k: the mean over prompts of c/k, where c of k sampled answers are correct."""
    return _estimate([count / num_samples for count in num_correct], answers=num_samples)


def sampled_pass(num_correct: Sequence[int], num_samples: int, draws: int) -> Estimate:
    """Estimates pass@j from k samples, without bias: the mean over prompts of 1 - C(k - c, j) / C(k, j).

    The term is the probability that j of a prompt's k answers, drawn without replacement, contain a correct one
    (Chen et al., "Evaluating Large Language Models Trained on Code", arXiv 2107.03374).

    Args:
        num_correct: c of each prompt.
        num_samples: k.
        draws: j, at most k.
    """
    chances = [1 - math.comb(num_samples - count, draws) / math.comb(num_samples, draws) for count in num_correct]
    return _estimate(chances, answers=num_samples // draws)


def _estimate(values: Sequence[float], answers: int) -> Estimate:
    """Returns the mean of one value per prompt, with Wilson's interval for the effective number of trials m.

        p = mean x_i,   m = n · p(1-p) / mean (x_i - p)²,   n ≤ m ≤ n · answers

        (p + z²/2m ± z √(p(1-p)/m + z²/4m²)) / (1 + z²/m)

    Prompts are the sampled units. The answers to one prompt therefore count as one trial if they all agree (m = n),
    and as separate trials if they are independent. With one answer per prompt, m = n, and the result is Wilson's
    interval (JASA 22, 1927). m is Kish's effective size of a clustered sample ("Survey Sampling", 1965). Unlike the
    mean plus and minus two standard errors, the interval lies within [0, 1] and is not empty if all answers are wrong.

    Args:
        values: one value in [0, 1] per prompt.
        answers: largest number of independent answers behind one value.
    """
    count = len(values)
    mean = min(1.0, math.fsum(values) / count)
    spread = sum((value - mean) ** 2 for value in values) / count
    variance = mean * (1 - mean)
    fewest, most = count, count * answers
    if variance <= 0:  # all right or all wrong: the answers to one prompt may be fully correlated
        trials = fewest
    else:
        trials = min(max(count * variance / spread, fewest), most) if spread > 0 else most
    centre = mean + _Z**2 / (2 * trials)
    reach = _Z * math.sqrt(variance / trials + _Z**2 / (4 * trials**2))
    scale = 1 + _Z**2 / trials
    return Estimate(mean, max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale))
