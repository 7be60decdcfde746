"""YaRN: a rotary embedding that is stretched to longer texts, as Transformers computes it.

Dimension pair i of a head of size d turns by θ^(-2i/d) per position. Pairs that turn often within the original length
keep this frequency, those that hardly turn get it divided by the factor, and a ramp is between them. Queries and keys
are both multiplied by the attention factor a, so that their products are by a²: here the softmax's scale has it.
"""

import math
from typing import Any

from megatron_sspo.weights.family import Config, number, size


def frequencies(config: Config, rope: dict[str, Any], head_dim: int) -> tuple[float, ...]:
    """Returns the frequency of each pair of dimensions, from the parameters that `decoder.rope` returns."""
    theta, factor = rope["rope_theta"], number(rope, "factor")
    length = size({**config, **rope}, "original_max_position_embeddings", "max_position_embeddings")

    def pair_that_turns(rotations: float) -> float:  # so often within the original length
        return head_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_that_turns(number(rope, "beta_fast", 32))
    high = pair_that_turns(number(rope, "beta_slow", 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    stretched = [min(max((pair - low) / ((high - low) or 0.001), 0), 1) for pair in range(head_dim // 2)]
    return tuple(theta ** (-2 * pair / head_dim) * (s / factor + 1 - s) for pair, s in enumerate(stretched))


def attention_factor(rope: dict[str, Any]) -> float:
    """Returns the factor of queries and of keys."""

    def scale(name: str) -> float:
        return 0.1 * rope.get(name, 1) * math.log(number(rope, "factor")) + 1 if number(rope, "factor") > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return number(rope, "attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale("mscale") / scale("mscale_all_dim")
    return scale("")
