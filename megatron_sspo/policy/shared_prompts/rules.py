"""The rules for when prompts are shared."""

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_sspo.errors import UserError
from megatron_sspo.policy.with_cuda.installed import has_transformer_engine

# the work of rows with shared prompts by Transformer Engine, in units of separate ones: benchmarks/on_gpu.py, two long
# responses to a short prompt
SHARING_COST = 1.1


def shares_prompts(wanted: bool | None, transformer: TransformerConfig) -> bool:
    """Returns whether prompts are shared, which is never so together with losses of the routers.

    The default is to share them where that has been measured: on a CPU, and on a GPU with Transformer Engine and
    without context parallelism.

    Args:
        wanted: `Run.share_prompts`.

    Raises:
        UserError: prompts are to be shared, and routers have losses, attention has sinks, or layers keep a state.
    """
    reason = ""
    if has_router_losses(transformer):
        reason = (
            "the routers have losses of their own (megatron.moe_aux_loss_coeff, megatron.moe_z_loss_coeff), in which a "
            "shared prompt would count once instead of once for each response"
        )
    elif has_transformer_engine() and transformer.softmax_type != "vanilla":
        reason = (
            "the model's attention has sinks, with which rows that share prompts have not run by Transformer Engine"
        )
    elif transformer.linear_attention_freq is not None:
        reason = "the model has gated delta nets, whose state after a prompt would have to be copied to each response"
    if wanted and reason:
        raise UserError(f"share_prompts is true, and {reason}: leave out share_prompts")
    if wanted is not None or reason:
        return bool(wanted)
    return not torch.cuda.is_available() or (has_transformer_engine() and transformer.context_parallel_size == 1)


def has_router_losses(transformer: TransformerConfig) -> bool:
    """Returns whether the routers add their own losses, in which padding must not count."""
    coefficients = transformer.moe_aux_loss_coeff
    some = any(coefficients) if isinstance(coefficients, list) else bool(coefficients)
    return bool(transformer.num_moe_experts) and (some or bool(transformer.moe_z_loss_coeff))
