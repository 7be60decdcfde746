"""Modules that processes of tests need, which the one that they are forked from imports once."""

# ruff: noqa: F401
import gc
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Megatron's, about packages for GPUs
    import megatron_sspo.policy  # before Megatron: without CUDA it lets Megatron compile nothing

    # isort: split
    import aiohttp.web
    import matplotlib.backends.backend_agg
    import matplotlib.figure
    import megatron.core.dist_checkpointing.strategies.torch
    import transformers.models.qwen3_moe.modeling_qwen3_moe

    import megatron_sspo.cli.command_line
    import megatron_sspo.loop
    import megatron_sspo.policy.policy
    import megatron_sspo.reward.math
    import megatron_sspo.rollout.engines.embedded
    import megatron_sspo.weights.conversion.convert
    import sspo_lab.curves
    import sspo_rehearsal.rank

gc.collect()
gc.freeze()  # collecting garbage, as Megatron does at each checkpoint, would go through all of it each time
