"""Computes the loss from rewards and log-probs in pure torch: no Megatron, no process group, no configuration.

An objective is a gate and a pooling,

    J(θ) = E_i[ w_i Â_i ],   w_i = F( pool_t f(ρ_it; Â_i); Â_i ),   ρ_it = π_θ / π_old,

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

An objective returns the sum over the sequences of a microbatch. The caller divides once, by the global number of
sequences. An objective that is not a gate and a pooling is a callable of the same signature in a file of its own.
"""

from megatron_sspo.objective.advantages import group_centered, group_relative, leave_one_out
from megatron_sspo.objective.correction import Correction
from megatron_sspo.objective.gates import AtanLog, Clip, ExpAtan, ExpSig, Gate, Gumbel, Identity, SigLog, Sigmoid
from megatron_sspo.objective.penalties import Penalties, kl
from megatron_sspo.objective.pessimistic import Pessimistic
from megatron_sspo.objective.pooling import Pool, arithmetic, geometric
from megatron_sspo.objective.segments import Segments
from megatron_sspo.objective.sequence import SequenceObjective, gmpo, grpo, gspo, sapo, sspo
from megatron_sspo.objective.sums import Objective, Sums
from megatron_sspo.objective.supervised import Supervised

__all__ = [
    "AtanLog",
    "Clip",
    "Correction",
    "ExpAtan",
    "ExpSig",
    "Gate",
    "Gumbel",
    "Identity",
    "Objective",
    "Penalties",
    "Pessimistic",
    "Pool",
    "Segments",
    "SequenceObjective",
    "SigLog",
    "Sigmoid",
    "Sums",
    "Supervised",
    "arithmetic",
    "geometric",
    "gmpo",
    "group_centered",
    "group_relative",
    "grpo",
    "gspo",
    "kl",
    "leave_one_out",
    "sapo",
    "sspo",
]
