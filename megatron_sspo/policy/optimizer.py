"""Megatron's DDP, its distributed optimizer and its schedule of learning rates."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_sspo.errors import UserError
from megatron_sspo.policy.metrics import effective_sample_size
from megatron_sspo.policy.options import checked_fields, construct
from megatron_sspo.policy.with_cuda.fast_fields import fast_ddp_fields
from megatron_sspo.run import Optimizer, Parallel


def ddp_config(options: Mapping[str, Any], parallel: Parallel) -> DistributedDataParallelConfig:
    """Returns DDP's configuration: gradients summed in float32 and a distributed optimizer, unless `Run.ddp` differs.

    On CUDA its collectives overlap with computation.

    Raises:
        UserError: an option is wrong (see `checked_fields`), needs others that are off, or excludes one that is on.
    """
    options = checked_fields(DistributedDataParallelConfig, options, "ddp")
    fields = {"grad_reduce_in_fp32": True, "use_distributed_optimizer": True, **fast_ddp_fields(options, parallel)}
    config = construct(DistributedDataParallelConfig, fields, options, "ddp")
    if config.overlap_param_gather and not (config.use_distributed_optimizer and config.overlap_grad_reduce):
        raise UserError(
            "ddp.overlap_param_gather needs ddp.use_distributed_optimizer and ddp.overlap_grad_reduce: set them to true"
        )
    return config


def wrap_in_ddp(transformer: TransformerConfig, ddp: DistributedDataParallelConfig, chunks: Sequence[Any]) -> list[Any]:
    """Wraps the chunks in DDP."""
    if transformer.bf16:
        chunks = [in_bfloat16(transformer, chunk) for chunk in chunks]
    wrapped = [
        DistributedDataParallel(
            transformer, ddp, chunk, disable_bucketing=number > 0, **_parameter_layout(ddp, chunk, is_first=number == 0)
        )
        for number, chunk in enumerate(chunks)
    ]
    no_sync = [chunk.no_sync for chunk in wrapped]
    transformer.finalize_model_grads_func = finalize_model_grads
    transformer.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]  # pyright: ignore
    return wrapped


def in_bfloat16(transformer: TransformerConfig, chunk: Any) -> Float16Module:
    """Wraps a chunk in bfloat16. Its routers keep biases and counts of tokens in float32; Megatron would round both."""
    routers = [module for module in chunk.modules() if isinstance(module, TopKRouter)]
    buffers = [dict(router.named_buffers(recurse=False)) for router in routers]
    wrapped = Float16Module(transformer, chunk)
    for router, kept in zip(routers, buffers, strict=True):
        for name, buffer in kept.items():
            setattr(router, name, buffer)
    return wrapped


def _parameter_layout(ddp: DistributedDataParallelConfig, chunk: Any, *, is_first: bool) -> dict[str, Any]:
    """Returns the layout of DDP's buffers, which newer releases want from their callers."""
    compute: Any = getattr(DistributedOptimizer, "compute_full_param_layout", None)
    if compute is None or not ddp.use_distributed_optimizer:
        return {}
    size = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
    has_buckets = ddp.overlap_grad_reduce and is_first and parallel_state.is_pipeline_first_stage(ignore_virtual=True)
    layout = compute(
        [parameter for parameter in chunk.parameters() if parameter.requires_grad],
        (ddp.bucket_size or max(40_000_000, 1_000_000 * size)) if has_buckets else None,  # DDP's own default
        size,
        ddp,
        expert_data_parallel_world_size=parallel_state.get_expert_data_parallel_world_size(),
    )
    return {"full_param_layout": layout}


def make_optimizer(
    transformer: TransformerConfig, ddp: DistributedDataParallelConfig, chunks: list[Any], options: Optimizer
) -> Any:
    """Returns a fresh Adam. The weights must be loaded before: under bf16 they are copied to float32 here, once.

    Its moments are there before its first step, because servers in turns measure the memory that is free before it, and
    because Megatron cannot save an optimizer without them.
    """
    config = OptimizerConfig(
        optimizer="adam",
        lr=options.lr,
        min_lr=options.min_lr,
        weight_decay=options.weight_decay,
        adam_beta1=options.beta1,
        adam_beta2=options.beta2,
        adam_eps=options.eps,
        clip_grad=options.clip_grad,
        bf16=transformer.bf16,
        params_dtype=transformer.params_dtype,
        use_distributed_optimizer=ddp.use_distributed_optimizer,
        overlap_param_gather=ddp.overlap_param_gather,
    )
    if options.offload:
        from megatron_sspo.policy.with_cuda.offload import offloaded_optimizer

        optimizer = offloaded_optimizer(config, chunks, options.offload)
    else:
        optimizer = get_megatron_optimizer(config, chunks)
    for each in getattr(optimizer, "chained_optimizers", [optimizer]):
        if each.optimizer is not None:  # a rank may have no parameters of a kind
            each.init_state_fn(each.optimizer, each.config)
    transformer.grad_scale_func = optimizer.scale_loss  # pyright: ignore
    return optimizer


def make_scheduler(optimizer: Any, options: Optimizer, num_updates: int) -> OptimizerParamScheduler:
    """Returns a schedule of learning rates: warm-up, then `options.schedule` down to `min_lr` at the last update.

    A `min_lr` of 0 would be reached one update after the last, so that every update trains.
    """
    last = num_updates + (options.min_lr == 0)
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=options.lr,
        min_lr=options.min_lr,
        lr_warmup_steps=options.warmup_updates,
        lr_decay_steps=max(last, options.warmup_updates + 1),
        lr_decay_style=options.schedule,
        start_wd=options.weight_decay,
        end_wd=options.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,  # a resumed run takes its rates from its configuration
    )


def rate_scale(options: Optimizer, log_ratio: torch.Tensor, lengths: Sequence[int], episodes: Sequence[int]) -> float:
    """Returns the factor of a learning rate whose rollouts are stale, from 0 to 1: the smaller one of the two rules.

    It is 1 without a rule, and on-policy, where log ρ is 0: docs/staleness.md.

    By the effective sample size (VCPO, arXiv:2602.17616): √min(1, ESS / (S · full_rate_ess)), where
    ESS = (Σ_i w_i)² / Σ_i w_i² over S episodes and w_i = Π_t ρ_it. By the divergence: √min(1, full_rate_kl / KL),
    where KL is the mean of ρ − 1 − log ρ over the tokens.

    Args:
        log_ratio: [R] log ρ of every response token, one sequence after the other.
        lengths: tokens of each sequence, in the same order.
        episodes: the number, below S, of the episode of each sequence; without agents each sequence is one.
    """
    log_ratio, factors = log_ratio.double(), [1.0]
    if options.full_rate_ess:
        of_tokens = torch.tensor([*episodes]).repeat_interleave(torch.tensor([*lengths]))
        sums = log_ratio.new_zeros(max(episodes) + 1).index_add(0, of_tokens, log_ratio)
        weights = (sums - sums.max()).exp()  # the share is that of w_i, which might overflow
        factors.append(effective_sample_size(weights) / options.full_rate_ess)
    if options.full_rate_kl and (kl := float((log_ratio.expm1() - log_ratio).mean())) > 0:
        factors.append(options.full_rate_kl / kl)
    return math.sqrt(min(factors))
