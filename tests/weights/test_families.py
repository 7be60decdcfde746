"""Families: names of tensors, fields of config.json, and refused settings."""

import copy
import json
import re
from collections import Counter

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.family import load_family
from sspo_rehearsal.sizes import KNOWN
from tests.weights.tiny_checkpoints import KINDS

QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
GLM_4_5_AIR = {"architectures": ["Glm4MoeForCausalLM"], **read_json(KNOWN / "GLM-4.5-Air.json")}
MINIMAX_M2 = QWEN3_30B_A3B | {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "intermediate_size": 1536,
    "num_local_experts": 256,
    "rotary_dim": 64,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2}
WINDOW = {"use_sliding_window": True, "sliding_window": 8}
FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA3_SCALING = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def without(name):
    return {field: value for field, value in LLAMA3_SCALING.items() if field != name}


def published_names():
    """Yields the tensors of Qwen3-30B-A3B, as its index lists them."""
    yield from ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")
    for layer in range(48):
        prefix = f"model.layers.{layer}"
        yield from (f"{prefix}.input_layernorm.weight", f"{prefix}.post_attention_layernorm.weight")
        yield f"{prefix}.mlp.gate.weight"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
            yield f"{prefix}.self_attn.{part}.weight"
        for expert in range(128):
            for part in ("gate_proj", "up_proj", "down_proj"):
                yield f"{prefix}.mlp.experts.{expert}.{part}.weight"


def test_every_tensor_of_qwen3_30b_a3b_has_one_row():
    rows = load_family(QWEN3_30B_A3B).rows(QWEN3_30B_A3B, 151936)
    count = Counter(name for row in rows for name in row.hf)
    assert count == Counter(published_names())
    assert count.total() == 18867
    assert len({row.name for row in rows}) == len(rows) == 48 * (7 + 2 * 128) + 3
    shapes = [shape for row in rows for shape in row.hf_shapes]
    assert sum(torch.Size(shape).numel() for shape in shapes) == 30_532_122_624


def names_of_glm_4_5_air():
    """Yields the tensors of GLM-4.5-Air, as its index lists them, without layer 46, of multi-token prediction."""
    yield from ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")
    for layer in range(46):
        prefix = f"model.layers.{layer}"
        yield from (f"{prefix}.input_layernorm.weight", f"{prefix}.post_attention_layernorm.weight")
        yield from (f"{prefix}.self_attn.{part}_proj.weight" for part in "qkvo")
        yield from (f"{prefix}.self_attn.{part}_proj.bias" for part in "qkv")
        if layer:
            yield from (f"{prefix}.mlp.gate.weight", f"{prefix}.mlp.gate.e_score_correction_bias")
        for mlp in ("", *(f"experts.{e}." for e in range(128)), "shared_experts.") if layer else ("",):
            if mlp or not layer:
                yield from (f"{prefix}.mlp.{mlp}{part}_proj.weight" for part in ("gate", "up", "down"))


def test_every_tensor_of_glm_4_5_air_has_one_row():
    rows = load_family(GLM_4_5_AIR).rows(GLM_4_5_AIR, 151552)
    assert Counter(name for row in rows for name in row.hf) == Counter(names_of_glm_4_5_air())
    assert {row.name.rpartition(".")[2] for row in rows if row.dtype is not None} == {"expert_bias"}
    assert sum(torch.Size(shape).numel() for row in rows for shape in row.hf_shapes) == 106_852_251_264


@pytest.mark.parametrize("groups", [{}, {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}], ids=str)
def test_biased_routers_choose_and_weigh_as_those_of_transformers(groups):
    from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function
    from transformers import Glm4MoeConfig
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter

    config = GLM_4_5_AIR | {"hidden_size": 16, "n_routed_experts": 16, "routed_scaling_factor": 2.5, **groups}
    fields = load_family(config).transformer_fields(config)
    router = Glm4MoeTopkRouter(Glm4MoeConfig(**config))
    torch.nn.init.normal_(router.weight)
    torch.nn.init.normal_(router.e_score_correction_bias)
    logits, weights, chosen = router(torch.randn(50, 16))
    found, _ = topk_routing_with_score_function(
        logits,
        fields["moe_router_topk"],
        num_groups=fields.get("moe_router_num_groups"),
        group_topk=fields.get("moe_router_group_topk"),
        scaling_factor=fields["moe_router_topk_scaling_factor"],
        score_function=fields["moe_router_score_function"],
        expert_bias=router.e_score_correction_bias,
    )
    torch.testing.assert_close(found, torch.zeros(50, 16).scatter(1, chosen, weights))


def test_old_and_new_config_fields_are_equivalent(checkpoint):
    """Transformers 5 writes num_local_experts and rope_parameters, earlier versions num_experts and rope_theta."""
    new = json.loads((checkpoint("qwen3_moe") / "config.json").read_text())
    old = {name: value for name, value in new.items() if name not in ("num_local_experts", "rope_parameters")}
    old |= {"num_experts": new["num_local_experts"], "rope_theta": new["rope_parameters"]["rope_theta"]}
    family = load_family(new)
    assert family.transformer_fields(old) == family.transformer_fields(new)
    assert family.model_fields(old) == family.model_fields(new)
    assert family.rows(old, 97) == family.rows(new, 97)


@pytest.mark.parametrize(
    ("changes", "share"),
    [({}, 0.5), ({"rotary_dim": None}, 1.0), ({"rope_parameters": {"partial_rotary_factor": 0.25}}, 0.25)],
    ids=str,
)
def test_the_turned_part_of_minimax_heads_is_that_of_transformers(changes, share):
    from transformers import AutoConfig

    config = MINIMAX_M2 | changes
    assert load_family(config).model_fields(config)["rotary_percent"] == share
    theirs = AutoConfig.for_model(**copy.deepcopy(config)).rope_parameters
    assert theirs.get("partial_rotary_factor", 1.0) == share


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_router_weights_are_those_of_transformers(norm_topk_prob):
    """Compares Megatron's own top-k routing, with the family's fields, with Transformers' router."""
    from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    config = QWEN3_30B_A3B | {"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": norm_topk_prob}
    fields = load_family(config).transformer_fields(config)
    router = Qwen3MoeTopKRouter(Qwen3MoeConfig(hidden_size=16, num_experts=6, num_experts_per_tok=2))
    router.norm_topk_prob = norm_topk_prob
    torch.nn.init.normal_(router.weight)
    logits, scores, chosen = router(torch.randn(11, 16))
    found, _ = topk_routing_with_score_function(
        logits,
        fields["moe_router_topk"],
        use_pre_softmax=fields["moe_router_pre_softmax"],
        score_function=fields["moe_router_score_function"],
    )
    expected = torch.zeros(11, 6).scatter(1, chosen, scores)
    torch.testing.assert_close(found, expected)


def test_llama3_scaling_is_the_one_of_transformers():
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LLAMA | {"rope_scaling": LLAMA3_SCALING}
    fields = load_family(config).model_fields(config)
    assert (fields["rope_scaling"], fields["rope_scaling_factor"]) == (True, 32.0)
    rotary = RotaryEmbedding(
        64,
        1.0,
        rotary_base=fields["rotary_base"],
        rope_scaling=fields["rope_scaling"],
        rope_scaling_factor=fields["rope_scaling_factor"],
        use_cpu_initialization=True,
    )
    expected = LlamaRotaryEmbedding(LlamaConfig(**config)).inv_freq
    torch.testing.assert_close(rotary.inv_freq, expected)


FAMILIES = sorted({re.sub("_(tied|one_group|odd)$", "", kind) for kind in KINDS})
LATENT = ("deepseek_v3", "glm4_moe_lite")


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in LATENT])  # which have sizes of their own
@pytest.mark.parametrize("absent", [{"head_dim"}, {"num_key_value_heads"}, {"head_dim", "num_key_value_heads"}])
def test_absent_sizes_of_attention_are_those_of_transformers(checkpoint, kind, absent):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = json.loads((checkpoint(kind) / "config.json").read_text())
    config |= {"num_attention_heads": 64, "hidden_size": 128}
    config = {name: value for name, value in config.items() if name not in absent}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    expected = {name: tuple(tensor.shape) for name, tensor in model.named_parameters() if "self_attn" in name}
    family = load_family(config)
    rows = family.rows(config, 97)
    shapes = dict(pair for row in rows for pair in zip(row.hf, row.hf_shapes, strict=True) if "self_attn" in pair[0])
    assert shapes == expected
    fields, attention = family.transformer_fields(config), model.model.layers[-1].self_attn
    assert fields["kv_channels"] == attention.head_dim
    assert fields["num_query_groups"] == model.config.num_key_value_heads


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 8},
        {"use_sliding_window": False, "sliding_window": 8},
        {"use_sliding_window": True, "sliding_window": None},
        {"use_sliding_window": True},
        WINDOW,
        WINDOW | {"max_window_layers": 0},
        WINDOW | {"max_window_layers": 2, "layer_types": [FULL, SLIDING]},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["mixtral", "qwen2", "qwen3", "qwen3_moe"])
def test_windows_are_refused_where_transformers_slides(checkpoint, kind, changes):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = json.loads((checkpoint(kind) / "config.json").read_text())
    absent = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
    config = {name: value for name, value in config.items() if name not in absent} | changes
    theirs = AutoConfig.for_model(**copy.deepcopy(config))
    with torch.device("meta"):
        layers = AutoModelForCausalLM.from_config(theirs).model.layers
    if any(getattr(layer.self_attn, "sliding_window", theirs.sliding_window) for layer in layers):
        with pytest.raises(UserError, match=r"sliding.window"):
            load_family(config)
    elif not changes.get("use_sliding_window"):
        load_family(config)


@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta", "tie_word_embeddings", "norm_topk_prob"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_absent_fields_have_the_values_of_transformers(checkpoint, kind, field):
    from transformers import AutoConfig

    config = json.loads((checkpoint(kind) / "config.json").read_text())
    config.get("rope_parameters").pop(field, None)
    config.pop(field, None)
    family, theirs = load_family(config), AutoConfig.for_model(**copy.deepcopy(config))  # it writes into its arguments
    fields = family.transformer_fields(config) | family.model_fields(config)
    assert fields["layernorm_epsilon"] == theirs.rms_norm_eps
    assert fields["rotary_base"] == theirs.rope_parameters["rope_theta"]
    assert fields["share_embeddings_and_output_weights"] == theirs.tie_word_embeddings
    if kind == "qwen3_moe":
        assert fields["moe_router_pre_softmax"] == (not theirs.norm_topk_prob)


@pytest.mark.parametrize("base", [QWEN3_30B_A3B, LLAMA], ids=lambda base: base["model_type"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("attention_dropout", 0.1),
        ("is_causal", False),  # Transformers then attends to later tokens, too
        ("is_causal", None),
        ("attention_chunk_size", 8),  # and its key-value cache then forgets tokens
        ("per_layer_config", {"1": {"rms_norm_eps": 0.1}}),
        ("auto_map", {"AutoConfig": "configuration_x.XConfig"}),
        ("return_dict", False),  # and its models then raise an error
        ("attribute_map", {"rms_norm_eps": "initializer_range"}),  # and it then reads the latter field for the former
        ("attribute_map", None),  # and its configuration then raises an error
        ("text_config", {"rope_theta": 5.0}),
        ("decoder", {"rope_theta": 5.0}),
        ("text_encoder", {"rope_theta": 5.0}),
        ("generator", {}),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "fp8"}),
    ],
)
def test_fields_that_every_family_refuses(base, field, value):
    with pytest.raises(UserError) as error:
        load_family(base | {field: value})
    assert f"config.json has {field} {value!r}" in str(error.value)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (QWEN3_30B_A3B, {"mlp_only_layers": [0]}, r"mlp_only_layers \[0\]"),
        (QWEN3_30B_A3B, {"decoder_sparse_step": 2}, "decoder_sparse_step 2"),
        (QWEN3_30B_A3B, {"use_sliding_window": True, "sliding_window": 4096}, "use_sliding_window True"),
        (QWEN3, {"layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
        (QWEN3_30B_A3B, {"rope_scaling": {"type": "yarn"}}, "factor None; it must be a positive number"),
        (QWEN3_30B_A3B, {"rope_parameters": LLAMA3_SCALING}, "rope_type 'llama3'"),
        (QWEN3_30B_A3B, {"num_experts_per_tok": 1}, "num_experts_per_tok 1, .*no gradient"),
        (QWEN3_30B_A3B, {"layer_types": ["chunked_attention"] * 48}, "'chunked_attention'"),
        (LLAMA, {"layer_types": ["full_attention"] * 15 + ["sliding_attention"]}, "'sliding_attention'"),
        (LLAMA, {"hidden_size": "2048"}, "hidden_size '2048'; it must be a positive integer"),
        (LLAMA, {"num_hidden_layers": None}, "num_hidden_layers None; it must be"),
        (LLAMA, {"sliding_window": 4096}, "sliding_window 4096, which is not supported: it must be null"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias True"),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        (LLAMA, {"rope_scaling": LLAMA3_SCALING | {"low_freq_factor": 2.0}}, "low_freq_factor 2.0"),
        (LLAMA, {"rope_scaling": without("low_freq_factor")}, "low_freq_factor None"),
        (LLAMA, {"rope_scaling": without("original_max_position_embeddings")}, "position_embeddings 131072"),
        (LLAMA, {"rope_scaling": LLAMA3_SCALING, "original_max_position_embeddings": 4096}, "position_embeddings 4096"),
        (LLAMA, {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (GLM_4_5_AIR, {"norm_topk_prob": False}, "norm_topk_prob False"),
        (GLM_4_5_AIR, {"n_group": 4, "topk_group": 2}, "num_experts_per_tok 8 and topk_group 2, .* by their best 4"),
        (GLM_4_5_AIR, {"first_k_dense_replace": -1}, "first_k_dense_replace -1; it must be a positive integer"),
        (MINIMAX_M2, {"qk_norm_type": "per_head"}, "qk_norm_type 'per_head'"),
        (MINIMAX_M2, {"use_routing_bias": False}, "use_routing_bias False"),
        (LLAMA, {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "each of full_attention"),
    ],
)
def test_fields_that_one_family_refuses(base, changes, message):
    with pytest.raises(UserError, match=message):
        load_family(base | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"model_type": None},
    ],
)
def test_other_models_are_refused_with_the_supported_ones(changes):
    with pytest.raises(UserError, match=r"llama \(LlamaForCausalLM\).*qwen3_moe \(Qwen3MoeForCausalLM\)"):
        load_family(LLAMA | changes)
