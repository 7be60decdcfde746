"""Qwen3 dense models, 0.6B to 32B, which have norms on query and key."""

from functools import partial

from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import Family

_ATTENTION = decoder.Attention(qk_layernorm=True, default_groups=32, default_head_dim=128)

family = Family(
    architectures=("Qwen3ForCausalLM",),
    check=partial(decoder.check, also=decoder.SWITCHED_WINDOW, rope_parameters=decoder.YARN_ROPE),
    transformer_fields=partial(decoder.transformer_fields, attention=_ATTENTION),
    model_fields=partial(decoder.model_fields, attention=_ATTENTION),
    rows=partial(decoder.rows, attention=_ATTENTION),
)
