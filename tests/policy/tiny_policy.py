"""Tiny models in Hugging Face folders, a batch of rollouts for each, and the run that trains them."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
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
    PreTrainedModel,
    PreTrainedTokenizerFast,
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

from megatron_sspo.batching.routes import RouterShape, pack_routes, unpack_routes
from megatron_sspo.checkpoint.batches import read_batches, write_batches
from megatron_sspo.lora.peft_folder import adapter_config, write_peft_folder
from megatron_sspo.memory.parameters import padded_vocab_size
from megatron_sspo.run import LoRA, Model, Optimizer, Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.lora import factors_of

KINDS = ("moe", "dense", "tied", "one_group", "moe_shallow", "moe_odd", "qwen3", "qwen2", "mixtral", "glm4", "glm4_odd")
KINDS += ("mla", "mla_odd", "mla_glm", "mla_kimi", "gpt_oss", "qwen3_next", "qwen3_5", "minimax")
ROUTERS = {  # of the kinds that have a batch with routes
    "moe": RouterShape(num_layers=4, topk=2, num_experts=8),
    "glm4": RouterShape(num_layers=3, topk=2, num_experts=8),
    "glm4_odd": RouterShape(num_layers=4, topk=4, num_experts=16),
    "mla": RouterShape(num_layers=3, topk=4, num_experts=16),
    "gpt_oss": RouterShape(num_layers=4, topk=2, num_experts=8),
    "minimax": RouterShape(num_layers=4, topk=2, num_experts=8),
    "qwen3_next": RouterShape(num_layers=4, topk=2, num_experts=8),
    "qwen3_5": RouterShape(num_layers=4, topk=2, num_experts=8),
}
VOCAB_SIZE = 97  # odd, so that two tensor-parallel ranks pad it
TEMPERATURE = 0.7
CHAT_TEMPLATE = (  # w3 begins a message of the user, w4 one of the policy
    "{% for message in messages %}{{ 'w3 ' if message.role == 'user' else 'w4 ' }}{{ message.content }}{{ ' <eos> ' }}"
    "{% endfor %}{% if add_generation_prompt %}w4{% endif %}"
)
_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,  # Transformers sets the embedding of a padding token to zero, where gradients explode
}


def build(kind: str) -> PreTrainedModel:
    """Builds a model with random weights, far enough from uniform that a misplaced one shows."""
    sizes = {**_SIZES, "num_hidden_layers": 2} if kind == "moe_shallow" else _SIZES
    sizes = {**sizes, "num_key_value_heads": 1} if kind in ("one_group", "moe_odd") else sizes
    torch.manual_seed(1 if kind == "mixtral" else 0)  # with 0, rounding decides between two experts of one token
    if kind == "moe_odd":
        experts = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": False}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(head_dim=24, tie_word_embeddings=True, **experts, **sizes))
    elif kind.startswith("moe"):
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(head_dim=16, **experts, **sizes))
    elif kind == "qwen3":  # with YaRN
        yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=24, rope_parameters=yarn, **sizes))
    elif kind == "gpt_oss":  # a window of fewer tokens than most sequences have, and clamps that are met
        experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "swiglu_limit": 0.5}
        model = GptOssForCausalLM(GptOssConfig(head_dim=16, sliding_window=6, **experts, **sizes))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **sizes))
    elif kind == "glm4":  # as GLM-4.5
        attention = {"head_dim": 16, "use_qk_norm": True, "attention_bias": True}
        experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        experts |= {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "n_shared_experts": 1}
        model = Glm4MoeForCausalLM(Glm4MoeConfig(**attention, **experts, **sizes))
    elif kind == "glm4_odd":  # every layer with experts, in groups
        attention = {"head_dim": 32, "use_qk_norm": False, "attention_bias": False, "partial_rotary_factor": 0.25}
        experts = {"n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2}
        experts |= {"first_k_dense_replace": 0, "moe_intermediate_size": 20, "n_shared_experts": 2}
        model = Glm4MoeForCausalLM(Glm4MoeConfig(**attention, **experts, **sizes))
    elif kind in ("qwen3_next", "qwen3_5"):
        heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12}
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        experts |= {"shared_expert_intermediate_size": 32, "linear_value_head_dim": 16}
        # outputs of a net are small where queries and keys are orthogonal, and its norm would magnify rounding
        heads |= {"rms_norm_eps": 1e-3}
        if kind == "qwen3_next":
            model = Qwen3NextForCausalLM(Qwen3NextConfig(head_dim=32, **heads, **experts, **sizes))
        else:  # attention in every second layer
            heads |= {"linear_conv_kernel_dim": 3, "full_attention_interval": 2}
            model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(head_dim=32, **heads, **experts, **sizes))
    elif kind.startswith("mla"):
        is_odd = kind.endswith("odd")  # as Moonlight: queries without a latent, no YaRN; otherwise as DeepSeek-V3
        ranks = {"q_lora_rank": None if is_odd else 40, "kv_lora_rank": 24}
        heads = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "num_key_value_heads": 4}
        groups = {"n_group": 1, "topk_group": 1} if is_odd else {"n_group": 4, "topk_group": 2}
        experts = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 48}
        experts |= {"first_k_dense_replace": 1 - is_odd, "n_shared_experts": 1 + is_odd, "num_mtp_layers": 0}
        experts |= {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}  # which SGLang demands
        yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.0}
        yarn |= {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 16}
        if kind == "mla_kimi":  # as Kimi-K2
            groups = {"n_group": 1, "topk_group": 1, "num_attention_heads": 8, "num_key_value_heads": 8}
            yarn |= {"factor": 32.0, "mscale": 1.0, "beta_fast": 1.0}
        rope = {"rope_parameters": None if is_odd else yarn, "rms_norm_eps": 1e-3 if is_odd else 1e-6}
        if kind == "mla_glm":  # as GLM-4.7-Flash
            rope = {"rope_parameters": None, "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2}
        fields = {**sizes, **ranks, **heads, **groups, **experts, **rope}
        if kind == "mla_glm":
            model = Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**fields))
        else:
            model = DeepseekV3ForCausalLM(DeepseekV3Config(**fields))
    elif kind == "minimax":
        model = MiniMaxM2ForCausalLM(
            MiniMaxM2Config(head_dim=16, rotary_dim=8, num_local_experts=8, num_experts_per_tok=2, **sizes)
        )
    elif kind == "mixtral":
        experts = {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None}
        model = MixtralForCausalLM(MixtralConfig(**experts, **sizes))
    else:
        model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=kind == "tied", **sizes))
    for name, parameter in model.named_parameters():
        # Biases of mean 1 and norms of keys make all keys of a head nearly equal. The gradient of the norms is then
        # a difference of nearly equal sums: in Transformers' own float32 9e-6 from float64, and with mean 0 1.5e-6.
        mean, std = (1.0, 0.1) if "norm" in name else (0.0, 0.08)
        if kind.startswith("qwen3_") and "linear_attn" not in name:  # whose other norms have the weight minus 1
            mean = 0.0
        if "conv1d" in name:
            std = 0.5
        torch.nn.init.normal_(parameter, mean, std)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.1)
    return model.eval()


def save(kind: str, folder: Path) -> Path:
    """Writes the model and a tokenizer of one word per token."""
    build(kind).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCAB_SIZE)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"unk_token": "<unk>", "eos_token": "<eos>", "chat_template": CHAT_TEMPLATE}
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)
    return folder


def lora(kind: str, folder: Path) -> LoRA:
    """Returns adapters of all layers, to start from those of `save_adapter`."""
    has_experts = kind.startswith(("mo", "mixtral", "glm4", "minimax"))
    has_mlp = kind.startswith("glm4") or not (has_experts or kind == "gpt_oss")
    return LoRA(
        rank=8,
        alpha=16.0,
        targets=(
            "attention",
            *(["experts"] * has_experts),
            *(["mlp"] * has_mlp),
        ),
        path=str(folder.with_name(f"{folder.name}-adapter")),
    )


def save_adapter(kind: str, folder: Path) -> Path:
    """Writes a PEFT folder beside a model's, with random factors, and returns the path."""
    adapters, config = lora(kind, folder), json.loads((folder / "config.json").read_text())
    rows = load_family(config, folder).rows(config, padded_vocab_size(VOCAB_SIZE, 1))
    factors, generator = factors_of(rows, adapters.targets, adapters.rank), torch.Generator().manual_seed(2)
    shapes = [pair for one in factors for row in (one.a, one.b) for pair in zip(row.hf, row.hf_shapes, strict=True)]
    tensors = [(name, 0.1 * torch.randn(shape, generator=generator)) for name, shape in shapes]
    write_peft_folder(Path(adapters.path), tensors, adapter_config(adapters, factors, str(folder)))
    return Path(adapters.path)


def reference(folder: Path) -> PreTrainedModel:
    """Loads the model with Transformers."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def log_probs(model: PreTrainedModel, prompt: Prompt, rollout: Rollout) -> torch.Tensor:
    """Returns log π of the tokens after a prompt, 0 at those of an environment, by one forward pass and log_softmax."""
    tokens = torch.tensor([[*prompt.tokens, *rollout.tokens.tolist()]])
    rows = slice(len(prompt.tokens) - 1, tokens.shape[1] - 1)
    distribution = torch.log_softmax(model(tokens).logits[0, rows] / TEMPERATURE, dim=-1)
    found = distribution.gather(1, torch.tensor(rollout.tokens, dtype=torch.int64)[:, None])[:, 0]
    return torch.where(torch.tensor(rollout.response_mask(), dtype=torch.bool), found, 0.0)


# sequences of a group: (tokens of the prompt, tokens of each response)
BATCHES: dict[str, list[tuple[int, list[int]]]] = {
    "ragged": [(8, [3, 20, 12, 1]), (3, [7, 16, 0, 11]), (5, [2, 9, 18, 5])],
    "few": [(8, [13, 20, 12])],
    "even": [
        (6, [18, 10, 18, 10]),
        (4, [20, 12, 20, 12]),
    ],  # no layout needs padding, and four microbatches fit: 24 + 16
    "routed": [(8, [3, 20, 12, 1]), (3, [7, 16, 0, 11])],
}


def observed(name: str, length: int) -> tuple[tuple[int, int], ...]:
    """Returns the parts of a response that an environment wrote: two parts of 16 or more tokens, otherwise none.

    They leave three turns, the last of which is one token.
    """
    if name not in ("ragged", "routed") or length < 16:
        return ()
    return ((2, 5), (9, length - 1))


@torch.no_grad()
def save_batch(kind: str, name: str, folder: Path, path: Path) -> Path:
    """Writes groups of random responses with advantages of both signs, and returns the path.

    Long responses have several turns. Old log-probs are near the model's. The batch "routed" has random routes, which
    all responses of a group but the last have in common for their prompt.
    """
    model, generator = reference(folder), torch.Generator().manual_seed(1)

    def integers(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, VOCAB_SIZE, (count,), generator=generator).tolist())

    def noisy(values: torch.Tensor, scale: float) -> torch.Tensor:
        return values + scale * torch.randn(values.shape, generator=generator)

    groups = []
    for number, (prompt_length, lengths) in enumerate(BATCHES[name]):
        prompt = Prompt(id=str(number), tokens=integers(prompt_length), answer="")
        rollouts = []
        for length in lengths:
            rollout = Rollout(
                tokens=integers(length),
                rollout_log_probs=(0.0,) * length,
                text="",
                finish_reason="stop",
                policy_version=0,
                advantage=float(torch.randn((), generator=generator)),
                observed=observed(name, length),
            )
            own = torch.tensor(rollout.response_mask())
            old = noisy(log_probs(model, prompt, rollout), 0.3)
            values = {
                "old_log_probs": old,
                "rollout_log_probs": noisy(old, 0.01),
                "reference_log_probs": noisy(old, 0.2),
            }
            masked = {key: torch.where(own, value, 0.0) if length else value for key, value in values.items()}
            rollout = replace(rollout, **{key: tuple(value.tolist()) for key, value in masked.items()})
            if name == "routed":  # as an engine reports routes: the last token has none
                router = ROUTERS[kind]
                shape = (prompt_length + length - 1, router.num_layers, router.num_experts)
                chosen = torch.rand(shape, generator=generator).argsort(dim=-1)[..., : router.topk]
                if 0 < len(rollouts) < len(lengths) - 1:
                    first = unpack_routes(rollouts[0].routes, router)
                    chosen[: prompt_length - 1] = torch.tensor(first[: prompt_length - 1])
                rollout = replace(rollout, routes=pack_routes(chosen.numpy(), router.num_experts))
            rollouts.append(rollout)
        groups.append(RolloutGroup(prompt=prompt, rollouts=rollouts))
    write_batches(path, [groups])
    return path


def read_batch(path: Path) -> list[RolloutGroup]:
    (batch,) = read_batches(path)
    return batch


def with_first(batch: list[RolloutGroup], **change: object) -> list[RolloutGroup]:
    """Returns the batch with its first rollout changed."""
    first, *others = batch[0].rollouts
    return [replace(batch[0], rollouts=[replace(first, **change), *others]), *batch[1:]]


# Adam's ε is so large that rounding in a gradient near 0 does not become a step of size η.
OPTIMIZER = Optimizer(lr=1e-3, clip_grad=1.0, eps=1e-6)


def make_run(parallel: Parallel = Parallel(), *, tokens: int = 64, dtype: str = "float32", **fields: object) -> Run:
    """Returns a run with what `Policy` reads of it."""
    values = {
        "name": "test",
        "model": Model(path="", dtype=dtype),  # pyright: ignore
        "prompts": Prompts(source=""),
        "num_updates": 10,
        "parallel": parallel,
        "tokens_per_microbatch": tokens,
        "rollouts": Rollouts(sampling=Sampling(temperature=TEMPERATURE)),
        "optimizer": OPTIMIZER,
    }
    return Run(**{**values, **fields})  # pyright: ignore
