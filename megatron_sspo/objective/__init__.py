"""Computes the loss from rewards and log-probs in pure torch: no Megatron, no process group, no configuration.

An objective is a gate, a pooling and an average,

    J(θ) = (1/N) Σ_i a_i w_i Â_i,   w_i = F( pool_t f(ρ_it; Â_i); Â_i ),   ρ_it = π_θ / π_old,

and each method is a row:

    |      | token gate f                                    | pooling over tokens | sequence gate F |
    |------|-------------------------------------------------|---------------------|-----------------|
    | GRPO | Clip                                            | arithmetic          | –               |
    | GSPO | –                                               | geometric           | Clip            |
    | GMPO | Clip                                            | geometric           | –               |
    | SAPO | Sigmoid                                         | arithmetic          | –               |
    | SSPO | AtanLog (default), SigLog, ExpSig, ExpAtan,     | geometric           | –               |
    |      | Gumbel                                          |                     |                 |

`Pessimistic(gate)` wraps a gate so that it acts only where ρ has moved in the direction of the advantage.

An objective returns the sum over the sequences of a microbatch. The caller divides once, by N: the number of sequences
of the whole batch, of its response tokens, or a constant (`average`). An objective that is not gates, a pooling and an
average is a callable of the same signature in a file of its own; `Objective` says what it may ask for.
"""

# ruff: noqa: F405 (names that a star imports for type checkers)

from importlib import import_module
from typing import TYPE_CHECKING, Any

from megatron_sspo.objective.average import Average, OverLength, OverSequences, OverTokens
from megatron_sspo.objective.correction import Correction
from megatron_sspo.objective.gates import AtanLog, Clip, ExpAtan, ExpSig, Gate, Gumbel, Identity, SigLog, Sigmoid
from megatron_sspo.objective.inputs import Factor, TokenInputs
from megatron_sspo.objective.penalties import Penalties, kl
from megatron_sspo.objective.pooling import Pool, arithmetic, geometric, product
from megatron_sspo.objective.segments import Segments
from megatron_sspo.objective.sequence import SequenceObjective, gmpo, grpo, gspo, sapo, sspo
from megatron_sspo.objective.sums import Objective, Sums

if TYPE_CHECKING:
    from megatron_sspo.objective.advantages import group_centered, group_relative, leave_one_out
    from megatron_sspo.objective.supervised import Supervised
    from megatron_sspo.objective.zoo.rows import *  # noqa: F403 (with the gates and factors that it imports)

__all__ = [
    "AtanLog",
    "Average",
    "Clip",
    "Correction",
    "Decayed",
    "EntropyBand",
    "ExpAtan",
    "ExpSig",
    "Factor",
    "Flipped",
    "GammaKernel",
    "Gate",
    "GaussianDecay",
    "Gumbel",
    "Identity",
    "LeastPrefix",
    "Objective",
    "OffPolicySequences",
    "OverLength",
    "OverSequences",
    "OverTokens",
    "Penalties",
    "Pessimistic",
    "Pool",
    "PrefixBudget",
    "Preserving",
    "QuadraticPenalty",
    "Score",
    "Segments",
    "SequenceObjective",
    "SigLog",
    "Sigmoid",
    "Smoothed",
    "Sums",
    "Supervised",
    "Tapered",
    "TokenInputs",
    "Truncated",
    "TrustRegion",
    "arithmetic",
    "aspo",
    "ce_gppo",
    "cispo",
    "cppo",
    "dapo",
    "dgpo",
    "dppo_kl",
    "dppo_tv",
    "dr_grpo",
    "drpo",
    "dual_clip",
    "erc",
    "geometric",
    "gmpo",
    "gmpo_wide",
    "group_centered",
    "group_relative",
    "grpo",
    "gspo",
    "icepop",
    "ipo",
    "kl",
    "kpop",
    "leave_one_out",
    "luspo",
    "maspo",
    "minpro",
    "opsm",
    "product",
    "pspo",
    "rloo",
    "sapo",
    "scopic",
    "spo",
    "sspo",
    "topr",
    "vespo",
    "vespo_documented",
]


def __getattr__(name: str) -> Any:
    """Loads what only some runs use when it is first asked for: advantages, and the rows of other papers."""
    if name in __all__:
        for module in ("advantages", "supervised", "zoo.rows"):
            if hasattr(found := import_module(f"{__name__}.{module}"), name):
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
