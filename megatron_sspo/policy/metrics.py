"""Computes an update's numbers in metrics.jsonl from values of tokens and of sequences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from megatron_sspo.errors import UserError

_QUANTILES = {"p01": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
_MOVED = 1e-3  # |log ρ| above which a token counts as moved: well above the rounding noise of float32 log-probs


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """The values of one optimizer step over all ranks and microbatches: R response tokens, S sequences.

    Only rank 0 has the values of tokens and sequences; elsewhere both are empty.
    """

    loss: float  # the average over the batch, whose gradient was taken
    penalty: float = 0.0  # the part of the loss that `Penalties` adds
    router: Mapping[str, float] = field(default_factory=dict)  # metrics of the routers: see `RouterLoad`
    # [R] each: log_ratio, advantage, entropy, engine_difference; reference_difference if there is a reference policy,
    # teacher_difference (log p_teacher − log π_old) if there is a teacher, teacher_divergence if it adds one to the
    # loss, token_weight if the objective reports it
    tokens: Mapping[str, torch.Tensor]
    sequences: Mapping[str, torch.Tensor]  # [S] each: sequence_weight if the objective reports it
    order: Sequence[int]  # [S]: the index in the batch of each of the sequences
    grad_norm: float = 0.0  # before clipping
    learning_rate: float = 0.0  # of this step


def merge_reports(reports: Sequence[Mapping[str, Any]], *, order: Sequence[int], divisor: float) -> UpdateRecord:
    """Merges the microbatches' reports into one record; a report's loss and penalty are sums over its sequences.

    Args:
        order: the index in the batch of each sequence, in the order of the reports.
        divisor: what the sum over the whole batch is divided by.

    Raises:
        UserError: the objective reports values of other names in one microbatch than in another.
    """

    def joined(kind: str) -> dict[str, torch.Tensor]:
        for report in reports:
            if report[kind].keys() != reports[0][kind].keys():
                only = [reports[0][kind].keys() - report[kind].keys(), report[kind].keys() - reports[0][kind].keys()]
                first, other = (", ".join(sorted(map(str, names))) or "none" for names in only)
                raise UserError(
                    f"the objective returned {kind} {first} in one microbatch and {other} in another: let it return "
                    "Sums with the same names for every microbatch"
                )
        return {name: torch.cat([report[kind][name] for report in reports]) for name in reports[0][kind]}

    loss, penalty = (sum(float(report[name].double()) for report in reports) / divisor for name in ("loss", "penalty"))
    return UpdateRecord(loss=loss, penalty=penalty, tokens=joined("tokens"), sequences=joined("sequences"), order=order)


def weights_by_sequence(record: UpdateRecord, lengths: Sequence[int]) -> list[tuple[float, torch.Tensor]]:
    """Returns the sequence weight and the token weights [|y_i|] of each sequence, in the order of the batch.

    Weights that the objective does not report are NaN. The lengths |y_i| are in the order of the batch, too.
    """
    unknown = torch.full((sum(lengths),), math.nan)
    weights = record.tokens.get("token_weight", unknown).split([lengths[index] for index in record.order])
    sequence_weights = record.sequences.get("sequence_weight", torch.full((len(lengths),), math.nan))
    of_sequences = zip(sequence_weights.tolist(), weights, strict=True)
    by_index = dict(zip(record.order, of_sequences, strict=True))
    return [by_index[index] for index in range(len(lengths))]


def update_metrics(record: UpdateRecord) -> dict[str, float]:
    """Returns the update's numbers by the names that they are plotted under.

    KL(π_old‖π_θ) is estimated by k3 = ρ − 1 − log ρ on tokens that π_old sampled (Schulman, "Approximating KL
    divergence"), and so is KL(π_θ‖π_ref), by π_ref/π_θ. The entropy is the entropy of the whole distribution, not
    −log π of the sampled token.
    """
    log_ratio = record.tokens["log_ratio"].double()
    difference = record.tokens["engine_difference"].double()
    return {
        "policy/loss": record.loss,
        "policy/penalty": record.penalty,
        "policy/entropy": _mean(record.tokens["entropy"]),
        "policy/kl_old": _mean(log_ratio.expm1() - log_ratio),
        **_divergences(record),
        "policy/grad_norm": record.grad_norm,
        "policy/learning_rate": record.learning_rate,
        **_distribution("log_ratio", log_ratio),
        **_weights(record, log_ratio),
        "engine/log_prob_difference_mean": _mean(difference.abs()),
        "engine/log_prob_difference_max": float(difference.abs().max()) if len(difference) else 0.0,
        "engine/kl": _mean(difference.expm1() - difference),
        **_masked(record),
        "response/tokens": float(len(log_ratio)),
        **record.router,
    }


def _masked(record: UpdateRecord) -> dict[str, float]:
    """Returns the shares of tokens, and of sequences as a whole, that a correction leaves without a gradient."""
    kinds = {"masked_tokens": record.tokens, "masked_sequences": record.sequences}
    kept = {name: values["correction_kept"] for name, values in kinds.items() if "correction_kept" in values}
    return {f"engine/{name}": 1 - _mean(values) if len(values) else 0.0 for name, values in kept.items()}


def _divergences(record: UpdateRecord) -> dict[str, float]:
    """Returns those from the reference policy and the teacher, if the run has them.

    KL(π_old‖p_teacher) is by k1, the mean of log π_old − log p_teacher: what the teacher's term minimizes.
    """
    found = {}
    if (difference := record.tokens.get("reference_difference")) is not None:
        found["policy/kl_reference"] = _mean(difference.double().expm1() - difference.double())
    if (difference := record.tokens.get("teacher_difference")) is not None:
        found["policy/kl_teacher"] = -_mean(difference)
    if (divergence := record.tokens.get("teacher_divergence")) is not None:
        found["policy/teacher_divergence"] = _mean(divergence)
    return found


def _weights(record: UpdateRecord, log_ratio: torch.Tensor) -> dict[str, float]:
    """Returns the numbers of the weights that the objective reports, and of the tokens' sides."""
    positive, negative = record.tokens["advantage"] > 0, record.tokens["advantage"] < 0
    above, below = log_ratio > _MOVED, log_ratio < -_MOVED
    sides = {  # the tokens that have moved, by the signs of Â and log ρ
        "positive_above": positive & above,
        "positive_below": positive & below,
        "negative_above": negative & above,
        "negative_below": negative & below,
    }
    found = {"log_ratio/against_advantage": _mean(sides["positive_below"] | sides["negative_above"])}
    if (weight := record.tokens.get("token_weight")) is not None:
        found |= _distribution("token_weight", weight.double())
        found["token_weight/below_half"] = _mean(weight < 0.5)
        found["token_weight/zero"] = _mean(weight == 0)  # the clip fraction, if the gate is Clip
        found |= {f"token_weight/below_half/{name}": _mean(side & (weight < 0.5)) for name, side in sides.items()}
    if (weight := record.sequences.get("sequence_weight")) is not None:
        found |= _distribution("sequence_weight", weight.double())
        found["sequence_weight/effective_sample_size"] = effective_sample_size(weight.double())
    return found


def effective_sample_size(weights: torch.Tensor) -> float:
    """Returns (Σ s)² / (S Σ s²): the share of the S sequences that the weighted mean is worth, 1 if all are equal."""
    squares = len(weights) * float(weights.square().sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def _distribution(name: str, values: torch.Tensor) -> dict[str, float]:
    quantiles = {suffix: _quantile(values, q) for suffix, q in _QUANTILES.items()}
    return {f"{name}/mean": _mean(values), **{f"{name}/{suffix}": value for suffix, value in quantiles.items()}}


def _quantile(values: torch.Tensor, q: float) -> float:
    """Returns the nearest observed value, because torch.quantile refuses more than 16 million values."""
    if not len(values):
        return 0.0
    return float(values.kthvalue(1 + round(q * (len(values) - 1))).values)


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean()) if len(values) else 0.0
