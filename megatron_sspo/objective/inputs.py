"""Names the inputs that an objective may ask for, and defines factors of tokens that are computed from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from torch import Tensor

from megatron_sspo.objective.segments import Segments

InputName = Literal["rollout_log_probs", "reference_log_probs", "entropy", "old_entropy"]
INPUT_NAMES: tuple[str, ...] = get_args(InputName)
"""Each is [T]: log-probs of the engine, log-probs of the reference policy, entropies of π_θ and of π_old."""


@dataclass(frozen=True, eq=False)
class TokenInputs:
    """Detached values of the T response tokens of a microbatch, from which a factor is computed."""

    log_probs: Tensor  # [T] log π_θ
    old_log_probs: Tensor  # [T] log π_old
    advantages: Tensor  # [T] Â of the token
    segments: Segments  # the tokens of each sequence
    others: Mapping[str, Tensor]  # [T] each: the inputs that the factor needs, by name

    @property
    def log_ratio(self) -> Tensor:
        """log ρ [T]."""
        return self.log_probs - self.old_log_probs

    def anchor(self, name: Literal["old", "rollout"]) -> Tensor:
        """Log-probs [T] of π_old, or of the engine's policy."""
        return self.old_log_probs if name == "old" else self.others["rollout_log_probs"]


class Factor(Protocol):
    """A number m_t for each token, which multiplies its contribution to J and to the gradient.

    It may have an attribute `needs`, the names of the inputs that are to be in `TokenInputs.others`.
    """

    def __call__(self, inputs: TokenInputs) -> Tensor:
        """m_t, detached: [T]."""
        ...


def needs_of(objective: object) -> tuple[str, ...]:
    """Returns the names in the attribute `needs` of an objective or factor: inputs that it is given as keywords.

    Raises ValueError if a name is not one of `INPUT_NAMES`.
    """
    names = tuple(getattr(objective, "needs", ()))
    for name in names:
        if name not in INPUT_NAMES:
            raise ValueError(f"{type(objective).__name__} needs {name!r}, and there are {', '.join(INPUT_NAMES)}")
    return names
