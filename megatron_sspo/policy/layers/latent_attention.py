"""Makes Megatron's multi-head latent attention equal that of Transformers, in every layout."""

from typing import Any

import megatron.core.transformer.multi_latent_attention as stock
import torch
from megatron.core.transformer.identity_op import IdentityOp

from megatron_sspo.policy.layers.attention import RMSNorm
from megatron_sspo.policy.shared_prompts.rotary import SharedRotaryEmbedding
from megatron_sspo.policy.with_cuda.installed import has_transformer_engine

_EPSILON = 1e-6  # of the latents' norms in Transformers, whatever rms_norm_eps is
# the names in checkpoints, as those of Transformer Engine's spec, which fuses norms into the layers after them
_KEYS = {f"self_attention.{x}_layernorm.": f"self_attention.linear_{x}_up_proj.layer_norm_" for x in ("q", "kv")}


def replace_local_modules(parts: Any, transformer: Any, *, has_experts: bool) -> None:
    """Puts `RMSNorm` into the local spec of a layer with latent attention, and the names of its checkpoints."""
    stock.HAVE_TE = False  # megatron-core 0.16 sets it without Transformer Engine, and fails at TELinear, which is None
    attention = parts.self_attention.submodules
    # megatron-core 0.19 refuses a norm of queries that have no latent
    attention.q_layernorm = RMSNorm if transformer.q_lora_rank else IdentityOp
    attention.kv_layernorm = RMSNorm
    fused = {} if has_experts else {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    parts.sharded_state_dict_keys_map = {**_KEYS, **fused}


def mend(chunk: Any) -> None:
    """Mends the attention of a model chunk, with the local spec or Transformer Engine's."""
    for layer in chunk.decoder.layers:
        attention = layer.self_attention
        attention.rotary_pos_emb = SharedRotaryEmbedding(attention.rotary_pos_emb)
        for name in ("q_layernorm", "kv_layernorm", "linear_q_up_proj", "linear_kv_up_proj"):
            module: Any = getattr(attention, name, None)
            if hasattr(module, "eps"):  # a fused layer has it, too
                module.eps = _EPSILON
        for name in ("linear_q_down_proj", "linear_kv_down_proj"):
            if not has_transformer_engine() and hasattr(attention, name):
                setattr(attention, name, _Duplicated(getattr(attention, name), attention.config))


class _Duplicated(torch.nn.Module):
    """A projection to latents, whole on every tensor-parallel rank, as Transformer Engine's are.

    In the local spec they are column-parallel. Their outputs are gathered, and the part of the keys that all heads
    share is not scattered again: its gradient, a sum over heads, stays that of a rank's own heads, and the gradient of
    `linear_kv_down_proj` is wrong. This layer computes a rank's own tokens, whose keys are gathered with gradients that
    are summed, and so is its weight's gradient.
    """

    def __init__(self, replaced: Any, config: Any) -> None:
        super().__init__()
        shape = replaced.output_size, replaced.input_size
        self.weight = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype, device=replaced.weight.device))
        self.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Returns the output, and None in place of a bias, as Megatron's layers do."""
        return torch.nn.functional.linear(values, self.weight), None
