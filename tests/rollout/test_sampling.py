"""The sampling distribution, the draw of tokens, and the random numbers."""

import math

import pytest
import torch

from megatron_sspo.rollout.embedded import sampling
from megatron_sspo.types import Sampling

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 1.0, -3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
RECORDED = 0.0784464532351794


def naive(logits, temperature, top_p, top_k, min_p):
    """Computes the probabilities of one row, token by token."""
    weights = [math.exp(z / temperature) for z in logits]
    probs = [w / sum(weights) for w in weights]
    kept, mass = [], 0.0
    for token in sorted(range(len(probs)), key=lambda t: (-probs[t], t)):
        if mass >= top_p or len(kept) == (top_k or 5) or probs[token] < min_p * max(probs):
            break
        kept.append(token)
        mass += probs[token]
    return [probs[t] / mass if t in kept else 0.0 for t in range(len(probs))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    ("top_p", "top_k", "min_p"),
    [
        *((top_p, 0, 0.0) for top_p in (1e-6, 0.35, 0.7, 0.95, 1.0)),
        (1.0, 2, 0.0),
        (0.7, 9, 0.0),
        (1.0, 0, 0.2),
        (1.0, 3, 1.0),
    ],
)
def test_log_distribution_matches_its_definition(temperature, top_p, top_k, min_p):
    cut = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    probs = sampling.log_distribution(LOGITS, cut).exp()
    expected = torch.tensor([naive(row, temperature, top_p, top_k, min_p) for row in LOGITS.tolist()])
    torch.testing.assert_close(probs, expected, rtol=1e-6, atol=1e-7)


def test_greedy_reports_the_model_distribution():
    expected = torch.log_softmax(LOGITS, dim=-1)
    torch.testing.assert_close(
        sampling.log_distribution(LOGITS, Sampling(temperature=0.0, top_p=0.5, top_k=2)), expected
    )


def test_draw_never_takes_a_token_of_probability_zero():
    log_probs = torch.tensor([[-math.inf, math.log(0.5), -math.inf, math.log(0.5), -math.inf]]).repeat(4, 1)
    edges = torch.tensor([0.0, 0.5 - 1e-12, 0.5 + 1e-12, 1 - 2**-53], dtype=torch.float64)
    assert sampling.draw(log_probs, edges).tolist() == [1, 1, 3, 3]


def test_random_stream_depends_only_on_its_arguments():
    keys = [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1), (0, "a:1", 1), (11, "a", 1), (1, "a", 11)]
    streams = {key: [sampling.random_stream(*key).random() for _ in range(2)] for key in keys}
    assert len({stream[0] for stream in streams.values()}) == len(keys)
    # A recorded number: another process, machine or Python version must give the same one.
    assert sampling.random_stream(0, "a", 0).random() == pytest.approx(RECORDED, abs=0)
