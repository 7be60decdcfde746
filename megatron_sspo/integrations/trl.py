"""Trains with any objective of `megatron_sspo.objective` in TRL: `GRPOTrainer` with another loss."""

import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
import trl
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from megatron_sspo.errors import UserError
from megatron_sspo.integrations.padded import check_objective, corrected, padded_sums, segments_of
from megatron_sspo.integrations.shares import Shares
from megatron_sspo.objective import Objective, Penalties, sspo
from megatron_sspo.objective.average import average_of, counts_tokens

_RELEASE = "1.16."
# Options of the losses that the objective replaces. They must have their defaults.
_REPLACED = (
    *("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "sapo_temperature_neg"),
    *("sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    *("use_bias_correction_kl", "off_policy_mask_threshold", "top_entropy_quantile", "entropy_coef"),
    "use_adaptive_entropy",
)


class SSPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with an objective of this package.

        trainer = SSPOTrainer(
            model="Qwen/Qwen3-0.6B",
            reward_funcs=reward,
            args=GRPOConfig(output_dir="runs/sspo", num_iterations=2),
            train_dataset=dataset,
            objective=sspo(SigLog(0.6, 0.5)),
        )

    Everything but the loss is TRL's: generation, rewards, advantages, vLLM and its correction (whose ratios multiply
    the gradient of each token), `beta` (k3, a mean over sequences), the auxiliary loss of a mixture of experts. The
    gradient of the objective is that of its formula over all sequences of an optimizer step, however
    `per_device_train_batch_size`, `gradient_accumulation_steps` and processes divide them.

    Args:
        objective: what to maximize, such as `sspo()`, `gspo()` or `grpo(eps_high=0.28)`.
        **options: the arguments of GRPOTrainer.

    Raises:
        UserError: an option of `args` belongs to a loss that the objective replaces, TRL is another release, or the
            objective cannot be computed here.
    """

    _tag_names = ["trl", "sspo"]  # noqa: RUF012 (TRL's)
    _name = "SSPO"
    _paper = {  # noqa: RUF012 (TRL's)
        "title": "Soft Sequence Policy Optimization",
        "id": "2602.19327",
        "citation": textwrap.dedent("""\
            @misc{glazyrina2026sspo,
                title         = {Soft Sequence Policy Optimization},
                author        = {Svetlana Glazyrina and Maksim Kryzhanovskiy and Roman Ischenko},
                year          = {2026},
                eprint        = {2602.19327},
                archivePrefix = {arXiv},
            }"""),
    }

    def __init__(self, *positional: Any, objective: Objective = sspo(), **options: Any) -> None:  # noqa: B008 (frozen)
        check_objective(objective)
        if not trl.__version__.startswith(_RELEASE):
            raise UserError(
                f"TRL is {trl.__version__}, and SSPOTrainer overrides private methods of TRL {_RELEASE}0: "
                "pip install trl==1.16.0"
            )
        args = options.get("args") or next((value for value in positional if isinstance(value, GRPOConfig)), None)
        if args is not None:
            _check_config(args, objective)
        self.objective = objective
        self._window = range(0)  # the steps of TRL's counter `_step` that make up the current optimizer step
        super().__init__(*positional, **options)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """Collects the microbatches of an optimizer step, and notes which steps they are."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._window = range(self._step, self._step + len(batches))
        return batches, num_items

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        mask = _loss_mask(inputs)
        log_probs, entropy, aux_loss = self._log_probs(model, inputs)
        old_log_probs = inputs.get("old_per_token_logps")
        if old_log_probs is None:  # TRL leaves them out where π_old is π_θ
            old_log_probs = log_probs.detach()
        ratio = inputs.get("importance_sampling_ratio")  # of π_old to vLLM's policy
        segments = segments_of(mask)
        sums = padded_sums(
            self.objective, corrected(log_probs, ratio, mask), old_log_probs, inputs["advantages"], mask, segments
        )

        training = self.model.training
        microbatches = self.current_gradient_accumulation_steps if training else 1
        processes = self.accelerator.num_processes
        num_sequences = len(mask) * microbatches * processes
        num_tokens = self._num_tokens(mask, training) if counts_tokens(self.objective) else 0
        # gradients are averaged over processes, and added up over microbatches
        loss = sums.loss * processes / average_of(self.objective).divisor(num_sequences, num_tokens)

        shares = Shares()
        shares.add("entropy", entropy[mask])
        if self.beta:
            reference = inputs["ref_per_token_logps"][mask]
            penalty = Penalties(kl_coef=1.0)(log_probs[mask], None, reference, segments)
            loss = loss + self.beta * penalty * processes / num_sequences
            shares.add("kl", penalty / max(len(mask), 1))
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux_loss / microbatches
            shares.add("aux_loss", aux_loss)
        shares.add_sums(sums)
        for name, mean in shares.means(self.accelerator.reduce(shares.stack(), reduction="sum")).items():
            self._metrics["train" if training else "eval"][name].append(mean)
        return loss

    def _log_probs(self, model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns log-probs and entropies of the responses [B, L], at least float32, and the auxiliary loss."""
        parameters = inspect.signature(self._get_per_token_logps_and_entropies).parameters
        log_probs, entropy, aux_loss = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].size(1),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs[name] for name in parameters if name in inputs},  # those of images
        )
        return log_probs, entropy, aux_loss

    def _num_tokens(self, mask: Tensor, training: bool) -> float:
        """Returns the number of response tokens of the optimizer step, over all microbatches and processes."""
        if training:
            slots = [step % self.args.steps_per_generation for step in self._window]
            masks = [_loss_mask(self._buffered_inputs[slot]) for slot in slots]
        else:
            masks = [mask]
        local = torch.stack([m.sum() for m in masks]).sum()
        return float(self.accelerator.reduce(local, reduction="sum"))


def _loss_mask(inputs: dict[str, Any]) -> Tensor:
    """Returns the mask of the response tokens that the model wrote, and not a tool: [B, L]."""
    mask = inputs["completion_mask"]
    return (mask if "tool_mask" not in inputs else mask * inputs["tool_mask"]).bool()


def _check_config(args: GRPOConfig, objective: Objective) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    for name in _REPLACED:
        if (value := getattr(args, name)) != defaults[name]:
            raise UserError(
                f"GRPOConfig.{name} is {value!r}, but it belongs to TRL's own losses, which the objective replaces: "
                "leave it out, and write the objective's parameters as in objective=grpo(0.2, 0.28)"
            )
    reuse = args.steps_per_generation * args.num_iterations
    if counts_tokens(objective) and reuse % args.gradient_accumulation_steps:
        raise UserError(
            f"GRPOConfig.gradient_accumulation_steps is {args.gradient_accumulation_steps}, but steps_per_generation "
            f"* num_iterations = {reuse} is not a multiple of it, so a mean over the tokens of an optimizer step would "
            "need responses that are not yet generated: choose sizes that divide, or a mean over sequences"
        )
