"""From logits to a token: the distribution that is sampled from, and the draw. Pure, except for the random stream."""

import hashlib
import random

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import Sampling


def check(sampling: Sampling) -> None:
    """Raises a UserError when a field of `sampling` has no meaning."""
    if sampling.max_tokens < 1:
        raise UserError(f"sampling.max_tokens is {sampling.max_tokens}: a response has at least one token")
    if sampling.temperature < 0:
        raise UserError(f"sampling.temperature is {sampling.temperature}: use 0 for greedy decoding, or more to sample")
    if not 0 < sampling.top_p <= 1:
        raise UserError(f"sampling.top_p is {sampling.top_p}: it must lie in (0, 1]")
    if "" in sampling.stop:
        raise UserError("sampling.stop has an empty string, which every response contains: remove it")


def log_distribution(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """The log-probabilities that a token is drawn with.

        log p ∝ z / temperature  on the smallest set of most likely tokens whose mass reaches top_p,  −∞ elsewhere

    For `temperature` 0 there is no such distribution: the result is the model's own, log softmax z, and `top_p` is
    not used. It is what a trainer at temperature 1 compares with.

    Args:
        logits: [rows, vocabulary], of any floating type.

    Returns:
        [rows, vocabulary] in float32, normalized.
    """
    log_probs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature == 0 or top_p == 1:
        return log_probs
    # Stable, so that ties at the border are cut by token number rather than by the sort's whim.
    descending, order = log_probs.sort(dim=-1, descending=True, stable=True)
    probs = descending.double().exp()
    outside = probs.cumsum(dim=-1) - probs >= top_p
    outside[:, 0] = False  # the sum less itself may not be exactly zero, and one token must remain
    kept = log_probs.masked_fill(torch.empty_like(outside).scatter_(-1, order, outside), float("-inf"))
    return torch.log_softmax(kept, dim=-1)


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draws one token per row by the inverse of the cumulative distribution.

    The sum runs in the order of the vocabulary. In the order of likelihood, two tokens that are equally likely up to
    rounding could change places between two batch shapes, and the same uniform number would draw another token.

    Args:
        log_probs: [rows, vocabulary].
        uniforms: [rows] in float64, each in [0, 1).

    Returns:
        [rows] token numbers, each of probability above zero.
    """
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    total = cumulative[:, -1]
    # Rounding may lift the product to the total itself, past the last token.
    threshold = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold[:, None], right=True).squeeze(-1)


def random_stream(seed: int, prompt_id: str, index: int) -> random.Random:
    """The uniform numbers of the response `index` of a group, one for each token.

    They depend on nothing else: neither on the batch nor on the group's size nor on Python's hash seed. Python promises
    that `Random.random` keeps its numbers from version to version.
    """
    key = hashlib.sha256(f"{seed}\0{index}\0{prompt_id}".encode()).digest()
    return random.Random(int.from_bytes(key, "big"))
