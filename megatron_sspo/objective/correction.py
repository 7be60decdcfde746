"""Correction of the mismatch between trainer and engine: π_old / π_rollout.

The engine samples from π_rollout, which has the weights of π_old but other kernels. This ratio is not the objective's
π_θ / π_old, and the two are never multiplied.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from megatron_sspo.objective.checks import check_name, check_number
from megatron_sspo.objective.divergence import binary_kl
from megatron_sspo.objective.segments import Segments

Mode = Literal["none", "truncated", "masked", "binary_kl"]
Level = Literal["token", "sequence", "product"]


@dataclass(frozen=True)
class Correction:
    """Detached weights c_t that scale the gradient of each token.

    At token level, c_t = π_old / π_rollout of the token. At sequence level, c_t is the geometric mean of this ratio
    over the sequence, for every token of it; at product level it is their product, which is the unbiased weight of a
    whole sequence and has a large variance. The modes are

        truncated: min(c_t, cap)
        masked:    c_t where floor ≤ c_t ≤ cap, 0 elsewhere
        binary_kl: c_t where the KL of two events, the token and all others, is at most max_kl between π_old and
                   π_rollout and the other way round, 0 elsewhere; at token level only

    `icepop()` and `kpop()` have the values of the papers.

    Raises:
        ValueError: the mode or level is unknown, the bounds violate 0 ≤ floor ≤ 1 ≤ cap < ∞ or max_kl > 0, or the mode
            is binary_kl and the level is another than token.
    """

    mode: Mode = "none"  # none, truncated, masked or binary_kl
    level: Level = "token"  # token, sequence (geometric mean) or product
    cap: float = 2.0  # the largest weight
    floor: float = 0.5  # the smallest weight that is not masked
    max_kl: float = 0.1  # the largest divergence of the mode binary_kl

    def __post_init__(self) -> None:
        check_name(self, "mode", get_args(Mode))
        check_name(self, "level", get_args(Level))
        # floor ≤ 1 ≤ cap, so that tokens on which trainer and engine agree have the full weight
        check_number(self, "cap", lambda value: value >= 1, "a finite number, with 0 ≤ floor ≤ 1 ≤ cap")
        check_number(self, "max_kl", lambda value: value > 0, "a finite number above 0")
        if self.mode == "binary_kl" and self.level != "token":
            raise ValueError(f"Correction.level is {self.level!r}, and must be 'token' in the mode 'binary_kl'")
        check_number(self, "floor", lambda value: 0 <= value <= 1, "a finite number, with 0 ≤ floor ≤ 1 ≤ cap")

    def apply(
        self, log_probs: Tensor, old_log_probs: Tensor, rollout_log_probs: Tensor | None, segments: Segments
    ) -> Tensor:
        """Returns log-probs whose gradient is multiplied by c_t, as `scale_gradient` does: [T].

        An objective depends on θ only through `log_probs`, so for every objective of this package the gradient
        contribution of token t is multiplied by c_t. The pooled weight w_i is left unchanged on purpose: its ratio is
        normalized by length, and a factor Π_t c_t is not. That factor would drive w_i to 0 for a whole batch of long
        responses (NeMo-RL PR 2269: 0.06 instead of 1.0). Raises ValueError if there are no rollout log-probs, a shape
        is wrong, or log-probs are in half precision.
        """
        if self.mode == "none":
            return log_probs
        if rollout_log_probs is None:
            raise ValueError(
                f"Correction.mode is {self.mode!r}, and there are no log-probs of the engine to correct by"
            )
        segments.check_tokens("log_probs", log_probs)
        return scale_gradient(log_probs, self.weights(old_log_probs, rollout_log_probs, segments))

    def weights(self, old_log_probs: Tensor, rollout_log_probs: Tensor, segments: Segments) -> Tensor:
        """Returns c_t, detached: [T], [T] -> [T]; ones if the mode is none.

        Raises ValueError if a shape is wrong, or log-probs are in half precision.
        """
        segments.check_tokens("old_log_probs", old_log_probs)
        segments.check_tokens("rollout_log_probs", rollout_log_probs)
        log_weights = (old_log_probs - rollout_log_probs).detach()
        if self.mode == "none":
            return torch.ones_like(log_weights)
        if self.level != "token":
            pooled = segments.mean(log_weights) if self.level == "sequence" else segments.sum(log_weights)
            log_weights = pooled[segments.ids]
        weights = log_weights.exp()
        if self.mode == "binary_kl":
            both = (binary_kl(old_log_probs, rollout_log_probs), binary_kl(rollout_log_probs, old_log_probs))
            return torch.where(torch.maximum(*both).detach() <= self.max_kl, weights, 0.0)
        if self.mode == "truncated":
            return weights.clamp(max=self.cap)
        return torch.where((weights >= self.floor) & (weights <= self.cap), weights, 0.0)


def scale_gradient(log_probs: Tensor, factor: Tensor) -> Tensor:
    """Returns log-probs of the same values, through which the gradient of each token is multiplied by its factor."""
    values = log_probs.detach()
    return values + factor * (log_probs - values)
