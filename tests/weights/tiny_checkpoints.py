"""Tiny checkpoints, written by Transformers' own classes."""

from pathlib import Path

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.modeling_utils import PreTrainedModel

_SHAPE = {
    "vocab_size": 97,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}

KINDS = ("qwen3_moe", "llama", "llama_tied", "llama_one_group", "qwen3", "qwen2", "mixtral", "glm4_moe", "glm4_moe_odd")
KINDS += ("deepseek_v3", "deepseek_v3_odd", "glm4_moe_lite", "gpt_oss", "qwen3_next", "qwen3_5_moe_text", "minimax_m2")
DIVISIBLE = tuple(kind for kind in KINDS if kind != "llama_one_group")  # those with 4 key-value heads


def build(kind: str, **sizes: int) -> PreTrainedModel:
    """A model with random weights, norms included, so that no two tensors can be mistaken for each other."""
    torch.manual_seed(0)
    if kind == "qwen3_moe":
        config = Qwen3MoeConfig(
            **_SHAPE,
            num_key_value_heads=4,
            head_dim=6,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            norm_topk_prob=True,
        )
        model = Qwen3MoeForCausalLM(config)
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, num_key_value_heads=4, head_dim=6))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**_SHAPE, num_key_value_heads=4, tie_word_embeddings=True))
    elif kind == "glm4_moe_lite":
        experts = {"n_routed_experts": 6, "moe_intermediate_size": 12, "num_experts_per_tok": 2}
        sizes = {"q_lora_rank": 10, "kv_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5}
        sizes |= {"num_key_value_heads": 8, "num_nextn_predict_layers": 0}
        model = Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**_SHAPE, **experts, **sizes))
    elif kind.startswith("glm4_moe"):
        is_odd = kind.endswith("odd")  # every layer with experts, in groups
        groups = {"n_group": 3, "topk_group": 2, "num_experts_per_tok": 4} if is_odd else {"num_experts_per_tok": 2}
        experts = {"n_routed_experts": 6, "moe_intermediate_size": 12, "n_shared_experts": 1 + is_odd, **groups}
        has = {"use_qk_norm": not is_odd, "attention_bias": not is_odd, "first_k_dense_replace": 1 - is_odd}
        sizes = {**_SHAPE, "num_key_value_heads": 4, "head_dim": 8, "num_nextn_predict_layers": 0}
        model = Glm4MoeForCausalLM(Glm4MoeConfig(**sizes, **experts, **has))
    elif kind in ("qwen3_next", "qwen3_5_moe_text"):
        heads = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 6}
        experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
        sizes = {**_SHAPE, "num_key_value_heads": 4, "head_dim": 8, "linear_value_head_dim": 4}
        experts |= {"shared_expert_intermediate_size": 20, "full_attention_interval": 2}
        if kind == "qwen3_next":
            model = Qwen3NextForCausalLM(Qwen3NextConfig(**sizes, **heads, **experts))
        else:
            del sizes["intermediate_size"]
            model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**sizes, **heads, **experts))
    elif kind.startswith("deepseek_v3"):
        is_odd = kind.endswith("odd")  # queries without a latent, every layer with experts, in one group
        groups = {"n_group": 1, "topk_group": 1} if is_odd else {"n_group": 3, "topk_group": 2}
        experts = {"n_routed_experts": 6, "moe_intermediate_size": 12, "num_experts_per_tok": 4, **groups}
        ranks = {"q_lora_rank": None if is_odd else 10, "kv_lora_rank": 14, "first_k_dense_replace": 1 - is_odd}
        heads = {"qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "num_key_value_heads": 8}
        sizes = {**_SHAPE, "num_mtp_layers": 0}
        model = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **experts, **ranks, **heads))
    elif kind == "gpt_oss":
        experts = {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 4}
        model = GptOssForCausalLM(GptOssConfig(**{**_SHAPE, **sizes}, **experts, num_key_value_heads=4, head_dim=6))
    elif kind == "minimax_m2":
        experts = {"num_local_experts": 6, "num_experts_per_tok": 2}
        model = MiniMaxM2ForCausalLM(MiniMaxM2Config(**_SHAPE, **experts, num_key_value_heads=4, head_dim=6))
    elif kind == "mixtral":
        experts = {"num_local_experts": 6, "num_experts_per_tok": 2}
        model = MixtralForCausalLM(MixtralConfig(**_SHAPE, **experts, num_key_value_heads=4, sliding_window=None))
    else:
        groups = 1 if kind == "llama_one_group" else 4
        model = LlamaForCausalLM(
            LlamaConfig(**_SHAPE, num_key_value_heads=groups, tie_word_embeddings=kind == "llama_tied")
        )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.3)
    return model.eval()


def save(kind: str, folder: Path, max_shard_size: str = "1GB") -> PreTrainedModel:
    """Writes the model as Transformers does."""
    model = build(kind)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(20).reshape(2, 10)).logits
