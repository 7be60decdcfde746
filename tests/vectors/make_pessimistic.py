"""Writes pessimistic.json: values and gradients at 50 digits, by finite differences of formulas written naively in ρ.

    python tests/vectors/make_pessimistic.py

It needs only mpmath, and nothing of this package.
"""

import json
import random
from pathlib import Path

from mpmath import atan, e, exp, log, mp, mpf

mp.dps = 50

GATES = {
    "atanlog": lambda rho, tau: exp(tau * atan(log(rho) / tau)),
    "siglog": lambda rho, tau: exp(4 * tau / (1 + exp(-log(rho) / tau)) - 2 * tau),
    "expsig": lambda rho, tau: exp(4 * tau / (1 + exp(-(rho - 1) / tau)) - 2 * tau),
    "expatan": lambda rho, tau: exp(tau * atan((rho - 1) / tau)),
    "gumbel": lambda rho, tau: e * exp(-exp(-(rho - 1))),
    "sigmoid": lambda rho, tau: 4 / tau / (1 + exp(-tau * (rho - 1))),
}
CASES = [
    *((name, neg, pos, None, "geometric") for name in ("atanlog", "siglog") for neg, pos in ((0.3, 0.2), (0.6, 0.5))),
    ("expsig", 0.3, 0.2, None, "geometric"),
    ("expatan", 0.6, 0.5, None, "geometric"),
    ("gumbel", None, None, None, "geometric"),
    ("atanlog", 0.3, 0.2, 1.25, "geometric"),
    ("atanlog", 0.3, 0.2, None, "arithmetic"),
    ("sigmoid", 1.05, 1.0, None, "arithmetic"),
    ("sigmoid", 3.0, 2.5, 1.5, "arithmetic"),
]


def pessimistic(name, rho, advantage, tau, cap):
    """Returns f on the advantage's side of ρ = 1, and on the other side its tangent in log space at ρ = 1."""
    gate = GATES[name]
    if advantage * (rho - 1) >= 0:
        return gate(rho, tau)
    at_one = gate(mpf(1), tau)
    return at_one * (min(rho, mpf(cap)) if cap is not None else rho) ** (1 / at_one)


def objective(name, taus, cap, pool, log_probs, old_log_probs, advantages):
    """J = (1/S) Σ_i pool_t f_p(ρ_it; Â_i) Â_i."""
    total = mpf(0)
    for new, old, advantage in zip(log_probs, old_log_probs, advantages, strict=True):
        tau = mpf(taus[1] if advantage > 0 else taus[0]) if taus[0] is not None else None
        gates = [pessimistic(name, exp(a - b), advantage, tau, cap) for a, b in zip(new, old, strict=True)]
        product = mpf(1)
        for gate in gates:
            product *= gate
        weight = sum(gates) / len(gates) if pool == "arithmetic" else product ** (mpf(1) / len(gates))
        total += weight * advantage
    return total / len(advantages)


def case(number, name, neg, pos, cap, pool):
    draw = random.Random(number)
    lengths = [draw.choice([1, 2, 3, 5, 9]) for _ in range(5)]
    old = [[mpf(str(round(-3 * draw.random(), 5))) for _ in range(length)] for length in lengths]
    new = [[value + mpf(str(round(draw.gauss(0, 0.4), 5))) for value in sequence] for sequence in old]
    advantages = [mpf(str(round(draw.gauss(0, 1), 4))) for _ in lengths]

    def value(place=None, shift=0):
        moved = [[v + (shift if (i, t) == place else 0) for t, v in enumerate(s)] for i, s in enumerate(new)]
        return objective(name, (neg, pos), cap, pool, moved, old, advantages)

    step = mpf(10) ** -20
    gradient = [
        [float((value((i, t), step) - value((i, t), -step)) / (2 * step)) for t in range(length)]
        for i, length in enumerate(lengths)
    ]
    return {
        "gate": name,
        "params": {} if neg is None else {"tau_neg": neg, "tau_pos": pos},
        "cap": cap,
        "pool": pool,
        "log_probs": [[float(v) for v in s] for s in new],
        "old_log_probs": [[float(v) for v in s] for s in old],
        "advantages": [float(a) for a in advantages],
        "J": float(value()),
        "dJ_dlog_probs": gradient,
    }


if __name__ == "__main__":
    vectors = [case(number, *options) for number, options in enumerate(CASES)]
    Path(__file__).with_name("pessimistic.json").write_text(json.dumps(vectors) + "\n", encoding="utf-8")
