"""Maps parameter names of this process's modules to names in the weight table, which do not depend on the layout."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core import parallel_state

# Transformer Engine fuses a norm into the linear layer after it, and numbers the experts of a grouped GEMM
_TRANSFORMER_ENGINE = (
    (r"self_attention\.linear_qkv\.layer_norm_weight$", "input_layernorm.weight"),
    (r"self_attention\.linear_(q|kv)_up_proj\.layer_norm_weight$", r"self_attention.\1_layernorm.weight"),
    (r"mlp\.linear_fc1\.layer_norm_weight$", "pre_mlp_layernorm.weight"),
    (r"mlp\.experts\.(linear_fc[12])\.(weight|bias)(\d+)$", r"mlp.experts.\3.\1.\2"),
)


def weights_of(chunk: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) for the parameters of a chunk and for its routers' biases, which are buffers."""
    yield from chunk.named_parameters()
    yield from ((name, buffer) for name, buffer in chunk.named_buffers() if name.endswith(".expert_bias"))


def logical_parameters(chunks: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (logical name, tensor) for every parameter that this process holds, and for its routers' biases.

    Layers and experts are numbered over the whole model. With tied embeddings, the last pipeline stage keeps the output
    layer as a copy; it has the name of the embedding.
    """
    for chunk in chunks:
        layer_numbers = [layer.layer_number - 1 for layer in chunk.decoder.layers]
        tied = chunk.share_embeddings_and_output_weights
        for name, parameter in weights_of(chunk):
            yield _logical_name(name, layer_numbers, chunk.config.num_moe_experts, tied=tied), parameter


def _logical_name(name: str, layer_numbers: list[int], num_experts: int | None, *, tied: bool) -> str:
    if tied and name == "output_layer.weight":
        return "embedding.word_embeddings.weight"
    name = re.sub(r"^decoder\.layers\.(\d+)\.", lambda m: f"decoder.layers.{layer_numbers[int(m[1])]}.", name)
    name = name.replace(".experts.local_experts.", ".experts.")
    for pattern, replacement in _TRANSFORMER_ENGINE:
        name = re.sub(pattern, replacement, name)
    if num_experts:
        first = parallel_state.get_expert_model_parallel_rank() * (
            num_experts // parallel_state.get_expert_model_parallel_world_size()
        )
        name = re.sub(r"\.experts\.(\d+)\.", lambda m: f".experts.{first + int(m[1])}.", name)
    return name
