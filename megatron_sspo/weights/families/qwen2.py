"""Qwen2 and Qwen2.5 dense models, which have biases on query, key and value."""

from functools import partial

from megatron_sspo.weights.decoder import decoder_fields, dense_rows, embedding_fields, require_decoder
from megatron_sspo.weights.family import Family

family = Family(
    architectures=("Qwen2ForCausalLM",),
    check=partial(require_decoder, also={"use_sliding_window": (False, None)}),
    transformer_fields=partial(decoder_fields, qkv_bias=True),
    model_fields=embedding_fields,
    rows=partial(dense_rows, qkv_bias=True),
)
