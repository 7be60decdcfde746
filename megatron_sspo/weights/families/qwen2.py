"""Qwen2 and Qwen2.5 dense models, which have biases on query, key and value."""

from functools import partial

from megatron_sspo.weights import decoder
from megatron_sspo.weights.family import Family

_ATTENTION = decoder.Attention(qkv_bias=True, default_groups=32)

family = Family(
    architectures=("Qwen2ForCausalLM",),
    check=partial(decoder.check, also=decoder.SWITCHED_WINDOW),
    transformer_fields=partial(decoder.transformer_fields, attention=_ATTENTION),
    model_fields=decoder.model_fields,
    rows=partial(decoder.rows, attention=_ATTENTION),
)
