"""The work of a sequence against torch's count of FLOPs in a forward pass of the same model."""

import math

import pytest
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.flop_counter import FlopCounterMode

from megatron_sspo.batching.work import QUERIES_AT_ONCE, Work, masked_pairs
from megatron_sspo.policy.work import work_of
from tests.policy.tiny_policy import build

LENGTH = 64  # a chunk of a gated delta net


def of(config) -> Work:
    """Returns the work of a model of Transformers, with Megatron's names of the sizes."""
    experts = getattr(config, "num_experts", None)
    return work_of(
        TransformerConfig(
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            ffn_hidden_size=config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_query_groups=config.num_key_value_heads,
            kv_channels=config.head_dim,
            gated_linear_unit=True,
            add_bias_linear=False,
            num_moe_experts=experts,
            moe_ffn_hidden_size=config.moe_intermediate_size if experts else None,
            moe_router_topk=config.num_experts_per_tok if experts else 2,
            **(_of_delta_nets(config) if config.model_type == "qwen3_next" else {}),
        )
    )


def _of_delta_nets(config):
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    return {f"linear_{name}": getattr(config, f"linear_{name}") for name in names} | {
        "linear_attention_freq": [int(kind == "linear_attention") for kind in config.layer_types],
        "attention_output_gate": True,
        "moe_shared_expert_intermediate_size": config.shared_expert_intermediate_size,
    }


@pytest.mark.parametrize("kind", ["qwen3", "moe", "qwen3_next"])
def test_it_is_what_torch_counts(kind) -> None:
    model = build(kind)
    model.set_attn_implementation("eager")  # its products have all L² pairs
    if kind != "qwen3":
        model.set_experts_implementation("eager")
    solve = {torch.ops.aten.linalg_solve_triangular: lambda a, b, **_: 2 * math.prod(b) * a[-1]}  # as its inverse would
    with FlopCounterMode(display=False, custom_mapping=solve) as counter, torch.no_grad():
        model.model(input_ids=torch.arange(LENGTH)[None])
    assert 2 * of(model.config).of(LENGTH, LENGTH**2) == pytest.approx(counter.get_total_flops(), rel=2e-3)


def test_layers_without_experts_are_dense() -> None:
    sizes = {"num_layers": 4, "hidden_size": 8, "ffn_hidden_size": 32, "num_attention_heads": 2, "kv_channels": 4}
    sizes |= {"gated_linear_unit": True, "add_bias_linear": False}
    experts = {"num_moe_experts": 6, "moe_ffn_hidden_size": 5, "moe_router_topk": 2}
    dense = work_of(TransformerConfig(**sizes)).token
    every = work_of(TransformerConfig(**sizes, **experts)).token
    for pattern in (2, [1, 0, 1, 0]):
        mixed = work_of(TransformerConfig(**sizes, **experts, moe_layer_freq=pattern)).token
        assert mixed == (dense + every) // 2 and dense != every


def test_pairs_that_a_mask_hides() -> None:
    for length in (1, 255, 256, 257, 700):
        blocks = torch.arange(length).split(QUERIES_AT_ONCE)
        hidden = sum(int((torch.arange(int(block[-1]) + 1) > block[:, None]).sum()) for block in blocks)
        assert masked_pairs(length) == hidden
