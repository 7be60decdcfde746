"""Qwen2 and Qwen2.5 dense models, which have biases on query, key and value."""

from functools import partial

from megatron_sspo.weights.decoder import Attention, decoder_fields, dense_rows, embedding_fields, require_decoder
from megatron_sspo.weights.family import Family

_ATTENTION = Attention(qkv_bias=True, default_groups=32)

family = Family(
    architectures=("Qwen2ForCausalLM",),
    check=partial(require_decoder, windows="by layer"),
    transformer_fields=partial(decoder_fields, attention=_ATTENTION),
    model_fields=embedding_fields,
    rows=partial(dense_rows, attention=_ATTENTION),
)
