"""Qwen3 dense models, 0.6B to 32B, which have norms on query and key."""

from functools import partial

from megatron_sspo.weights.decoder import decoder_fields, dense_rows, embedding_fields, require_decoder
from megatron_sspo.weights.family import Family

family = Family(
    architectures=("Qwen3ForCausalLM",),
    check=partial(require_decoder, also={"use_sliding_window": (False, None)}),
    transformer_fields=partial(decoder_fields, qk_layernorm=True),
    model_fields=embedding_fields,
    rows=partial(dense_rows, qk_layernorm=True),
)
