"""Registers a policy loss with verl that computes any objective of `megatron_sspo.objective`.

    actor_rollout_ref.actor.policy_loss._target_=megatron_sspo.integrations.verl.PolicyLoss
    actor_rollout_ref.actor.policy_loss.loss_mode=megatron_sspo
    +actor_rollout_ref.actor.policy_loss.objective='"sspo(SigLog(0.6, 0.5))"'
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean

Each process of verl imports this module when it builds its configuration, so nothing else has to be loaded.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.workers.config import PolicyLossConfig

from megatron_sspo.config.expression import read_objective
from megatron_sspo.errors import UserError
from megatron_sspo.integrations.padded import check_objective, corrected, padded_sums, segments_of
from megatron_sspo.integrations.shares import Shares
from megatron_sspo.objective import Objective, OverLength
from megatron_sspo.objective.average import average_of, counts_tokens

LOSS_MODE = "megatron_sspo"


@dataclass
class PolicyLoss(PolicyLossConfig):
    """verl's PolicyLossConfig with an objective.

    Raises UserError if it cannot be read or cannot be computed in verl, or `loss_mode` is another one.
    """

    objective: str = "sspo()"  # an expression as in `--set objective=`, or package.module:attribute

    def __post_init__(self) -> None:
        if self.loss_mode != LOSS_MODE:
            raise UserError(
                f"actor.policy_loss.loss_mode is {self.loss_mode!r}, so actor.policy_loss.objective would not be used: "
                f"set loss_mode={LOSS_MODE}"
            )
        _read(self.objective)


@lru_cache
def _read(text: str) -> Objective:
    objective = read_objective(text, "actor.policy_loss.objective")
    check_objective(objective)
    return objective


@register_policy_loss(LOSS_MODE)
def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Computes the share of a microbatch in the loss of the whole batch: its sum, divided by a number of the batch.

    Args:
        old_log_prob: [B, L] log π_old.
        log_prob: [B, L] log π_θ.
        advantages: [B, L], one value in each row.
        response_mask: [B, L], true for the tokens that the model wrote.
        loss_agg_mode: how verl averages its penalties, which must be how the objective is averaged.
        config: the actor's configuration, with `policy_loss.objective`.
        rollout_is_weights: [B, L] verl's correction of the engine's mismatch, which multiplies the gradient of tokens.

    Returns:
        The loss, and means of this microbatch.

    Raises:
        UserError: verl's average is not that of the objective, advantages differ inside a response, or `policy_loss`
            is not a `PolicyLoss`.
    """
    settings = getattr(config, "policy_loss", None)
    if not isinstance(settings, PolicyLoss):
        raise UserError(
            f"actor.policy_loss is verl's own, without an objective: set actor.policy_loss._target_={__name__}."
            "PolicyLoss"
        )
    objective = _read(settings.objective)
    _check_average(objective, loss_agg_mode, config.loss_scale_factor, settings.objective)
    mask = response_mask.bool()
    segments = segments_of(mask)
    weighted = corrected(log_prob, rollout_is_weights, mask)
    sums = padded_sums(objective, weighted, old_log_prob, advantages, mask, segments)

    info = config.global_batch_info  # numbers of the whole batch; None if the batch was not split
    processes = info.get("dp_size") or 1
    num_sequences = _number_of_batch(info, "global_batch_size", segments.num_sequences, processes)
    num_tokens = _number_of_batch(info, "batch_num_tokens", segments.num_tokens, processes)
    # gradients are averaged over data-parallel processes, and added up over microbatches
    loss = sums.loss * processes / average_of(objective).divisor(num_sequences, max(num_tokens, 1))

    shares = Shares()
    shares.add("log_ratio/mean", (log_prob - old_log_prob)[mask])
    shares.add_sums(sums)
    means = shares.means(shares.stack())
    metrics = {f"actor/{name}": mean for name, mean in means.items()}
    # the names of verl's dashboards: the share of tokens without gradient, and an estimate of KL(π_old ‖ π_θ)
    metrics["actor/pg_clipfrac"] = means.get("token_weight/zero", 0.0)
    metrics["actor/ppo_kl"] = -means["log_ratio/mean"]
    return loss, metrics


def _number_of_batch(info: Any, name: str, local: int, processes: int) -> float:
    """Returns a number of the whole batch."""
    value = info.get(name)
    return local if value is None and processes == 1 else float(value)


def _check_average(objective: Objective, agg_mode: str, scale_factor: int | None, text: str) -> None:
    """Checks that verl averages its penalties as the objective is averaged."""
    average = average_of(objective)
    length = average.divisor(1, 1)
    options: dict[str, object]
    if counts_tokens(objective):
        options = {"loss_agg_mode": "token-mean"}
    elif isinstance(average, OverLength) or length != 1:
        options = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": length}
    else:
        options = {"loss_agg_mode": "seq-mean-token-mean"}
    given = {"loss_agg_mode": agg_mode, "loss_scale_factor": scale_factor}
    for name, expected in options.items():
        if given[name] != expected:
            raise UserError(
                f"actor.{name} is {given[name]}, but that of the average of {text} is {expected}, and verl's penalties "
                f"are averaged by that option: set actor.{name}={expected}"
            )
