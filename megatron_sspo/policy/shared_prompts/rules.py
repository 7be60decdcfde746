"""The rules for when prompts are shared."""

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_sspo.errors import UserError


def shares_prompts(wanted: bool | None, transformer: TransformerConfig) -> bool:
    """Returns whether prompts are shared: on a CPU by default, and not together with losses of the routers.

    Args:
        wanted: `Run.share_prompts`.

    Raises:
        UserError: prompts are to be shared, and routers have losses.
    """
    if wanted and has_router_losses(transformer):
        raise UserError(
            "share_prompts is true, and the routers have losses of their own (megatron.moe_aux_loss_coeff, "
            "megatron.moe_z_loss_coeff), in which a shared prompt would count once instead of once for each response: "
            "leave out share_prompts or the losses"
        )
    if wanted is None:
        return not torch.cuda.is_available() and not has_router_losses(transformer)
    return wanted


def has_router_losses(transformer: TransformerConfig) -> bool:
    """Returns whether the routers add their own losses, in which padding must not count."""
    coefficients = transformer.moe_aux_loss_coeff
    some = any(coefficients) if isinstance(coefficients, list) else bool(coefficients)
    return bool(transformer.num_moe_experts) and (some or bool(transformer.moe_z_loss_coeff))
