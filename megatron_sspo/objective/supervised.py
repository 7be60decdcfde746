"""Maximum likelihood on demonstrations, as an objective: the warm start before RL."""

from dataclasses import dataclass

from torch import Tensor

from megatron_sspo.objective.segments import Segments
from megatron_sspo.objective.sums import Sums


@dataclass(frozen=True)
class Supervised:
    """J(θ) = E_i[ (1/|y_i|) Σ_t log π_θ(y_it) ]."""

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor | None, advantages: Tensor | None, segments: Segments
    ) -> Sums:
        """Computes minus the sum over sequences of the token mean of `log_probs` [T].

        `old_log_probs` and `advantages` are not used; they are part of the common signature.

        Returns:
            `loss`, a scalar; `sequences`: `mean_log_prob` [S].

        Raises:
            ValueError: a shape is wrong, or log-probs are in half precision.
        """
        segments.check_tokens("log_probs", log_probs)
        mean_log_prob = segments.mean(log_probs)
        return Sums(loss=-mean_log_prob.sum(), sequences={"mean_log_prob": mean_log_prob.detach()})
