"""The checksums of weights that servers are compared with."""

from types import SimpleNamespace

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.weight_sync.checksums import Checksums

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 1,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("family", "heads"), [({"model_type": "llama"}, 16), ({"model_type": "mixtral", **EXPERTS}, 8)]
)
def test_absent_key_value_heads_are_the_default_of_the_family(family, heads):
    """Early models of the family llama have no `num_key_value_heads` in config.json, and Mixtral has 8 by default."""
    key = torch.arange(192.0).reshape(64, 3)
    parts = {f"model.layers.0.self_attn.{name}_proj.weight": key for name in "qkv"}
    found = []
    for config in ({**family, **SIZES}, {**family, **SIZES, "num_key_value_heads": heads}):
        checksums = Checksums(config, tp_size=16, on_gpu=False)
        assert [name for name, _ in checksums.observe(parts.items())] == list(parts)
        found.append(checksums._found)
    assert found[0] == found[1] and len(found[0][0]) == 1


@pytest.mark.parametrize(
    ("rank", "names", "fused"),
    [
        (8, ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj"), ("fused_qkv_a_proj_with_mqa", "q_b_proj")),
        (None, ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj"), ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj")),
    ],
)
def test_latent_attention_has_the_tensors_of_servers(rank, names, fused):
    sizes = dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8)
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    experts |= {"first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "moe_intermediate_size": 8}
    config = {"model_type": "deepseek_v3", **SIZES, **sizes, **experts, "q_lora_rank": rank}
    checksums = Checksums(config, tp_size=2, on_gpu=False)
    for _ in checksums.observe((f"model.layers.0.self_attn.{name}.weight", torch.rand(4, 4)) for name in names):
        pass
    one, other = checksums._found
    assert one.keys() == {f"model.layers.0.self_attn.{name}.weight" for name in fused}
    assert {name.split(".")[4] for name in one if one[name] == other[name]} == {n for n in fused if "with_mqa" in n}


@pytest.mark.parametrize("ranks", [[0], [0, 0]])
def test_every_rank_of_a_server_is_compared(ranks):
    checksums = Checksums({"model_type": "llama", **SIZES}, tp_size=2, on_gpu=False)
    for _ in checksums.observe([("model.embed_tokens.weight", torch.ones(64, 3))]):
        pass
    place = {"tp_size": 2, "pp_size": 1, "dp_size": 1}

    def compare(given):
        found = [{"checksums": checksums._found[n], "parallelism_info": [{**place, "tp_rank": n}]} for n in given]
        checksums.compare(
            SimpleNamespace(post=lambda *_: {0: {"ranks": found}}, servers={0: SimpleNamespace(url="http://a")})
        )

    compare([1, 0])
    with pytest.raises(UserError, match="the weights of http://a cannot be compared"):
        compare(ranks)
