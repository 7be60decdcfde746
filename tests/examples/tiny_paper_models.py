"""Very small models of the families of the paper's experiments, with a byte-level tokenizer.

They are taught the format of a response and the answers to the given prompts, but not so well that all samples agree.
So rewards differ, updates have gradients, and programs are executed.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from megatron_sspo.data.template import CODEACT_INSTRUCTION, THINK_ANSWER_INSTRUCTION

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig}


_MAX_STEPS, _ENOUGH = 150, 0.6  # nats per response: greedy responses are then right, but not all sampled ones


def build(family: str, folder: Path) -> PreTrainedTokenizerFast:
    """Writes a model of random weights, and its tokenizer with Qwen's turns."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(  # without merges the instructions would take most of the tokens
        vocab_size=600, initial_alphabet=alphabet, special_tokens=_SPECIAL, show_progress=False
    )
    words.train_from_iterator([THINK_ANSWER_INSTRUCTION, CODEACT_INSTRUCTION], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_CHAT_TEMPLATE
    )
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    tokens = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if family != "qwen2":
        heads["head_dim"] = 16
    if family == "qwen3_moe":
        heads |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(_CONFIGS[family](**sizes, **heads, **tokens)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def teach(folder: Path, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Trains on prompts and responses, given as tokens, and returns the last loss."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    longest = max(len(prompt) + len(response) for prompt, response in pairs)
    tokens, labels = torch.zeros(len(pairs), longest, dtype=torch.long), torch.full((len(pairs), longest), -100)
    for row, (prompt, response) in enumerate(pairs):
        end = len(prompt) + len(response)
        tokens[row, :end] = torch.tensor([*prompt, *response])
        labels[row, len(prompt) : end] = torch.tensor(response)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    num_tokens = sum(len(response) for _, response in pairs) / len(pairs)
    loss = torch.tensor(0.0)
    for step in range(_MAX_STEPS):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, (step + 1) / 10)
        loss = model(input_ids=tokens, labels=labels).loss
        if loss * num_tokens < _ENOUGH:
            break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(folder)
    return float(loss.detach())
