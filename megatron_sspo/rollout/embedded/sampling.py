"""Sampling of tokens from logits. All functions are pure; only the random stream has a state."""

import hashlib
import random

import torch
from torch import Tensor

from megatron_sspo.types import Sampling


def log_distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Returns the log-probs of the distribution that tokens are sampled from.

        log p = z / temperature + const  on the smallest set of most likely tokens whose mass reaches top_p, as far as
                                         they are among the top_k likeliest, and have min_p of the likeliest one's mass
        −∞ elsewhere

    For `temperature` 0 the result is the model's own distribution, log softmax z, without a cut: these are the
    log-probs that a trainer computes at temperature 1.

    Args:
        logits: [rows, vocabulary], of any floating type.

    Returns:
        [rows, vocabulary] in float32, normalized.
    """
    log_probs = torch.log_softmax(logits.float() / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0 or not sampling.cut_off:
        return log_probs
    # A stable sort cuts ties at the border by token id; otherwise the result would be undetermined.
    descending, order = log_probs.sort(dim=-1, descending=True, stable=True)
    probs = descending.double().exp()
    outside = (probs.cumsum(dim=-1) - probs >= sampling.top_p) | (probs < sampling.min_p * probs[:, :1])
    if sampling.top_k:
        outside[:, sampling.top_k :] = True
    outside[:, 0] = False  # one token must remain, but the difference may not be exactly zero
    kept = log_probs.masked_fill(torch.empty_like(outside).scatter_(-1, order, outside), float("-inf"))
    return torch.log_softmax(kept, dim=-1)


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draws one token per row by inverting the cumulative distribution.

    The sum runs in the order of the vocabulary. In the order of probability, two tokens of equal probability up to
    rounding could change places between two batch shapes, and the same uniform number would draw another token.

    Args:
        log_probs: [rows, vocabulary].
        uniforms: [rows] in float64, each in [0, 1).

    Returns:
        [rows] token ids, each with a probability above zero.
    """
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    total = cumulative[:, -1]
    # The product may be rounded up to the total itself, which is past the last token.
    threshold = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold[:, None], right=True).squeeze(-1)


def random_stream(seed: int, prompt_id: str, index: int) -> random.Random:
    """Returns the generator of the uniform numbers of response `index` of a group, one number per token.

    The numbers depend only on the arguments, not on the batch, the size of the group or Python's hash seed. Python
    guarantees that `Random.random` gives the same numbers in all versions.
    """
    key = hashlib.sha256(f"{seed}\0{index}\0{prompt_id}".encode()).digest()
    return random.Random(int.from_bytes(key, "big"))
