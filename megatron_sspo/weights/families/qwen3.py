"""Qwen3 dense models, 0.6B to 32B, which have norms on query and key."""

from functools import partial

from megatron_sspo.weights.decoder import Attention, decoder_fields, dense_rows, embedding_fields, require_decoder
from megatron_sspo.weights.family import Family

_ATTENTION = Attention(qk_layernorm=True, default_groups=32, default_head_dim=128)

family = Family(
    architectures=("Qwen3ForCausalLM",),
    check=partial(require_decoder, windows="by layer"),
    transformer_fields=partial(decoder_fields, attention=_ATTENTION),
    model_fields=embedding_fields,
    rows=partial(dense_rows, attention=_ATTENTION),
)
