"""A tiny random model that acts in an environment: some of its tokens are whole cells and whole solutions."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from megatron_sspo.types import Prompt
from tests.rollout import tiny_models

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '[user] ' if message.role == 'user' else '[bot] ' }}{{ message.content }}"
    "{{ '<eos>' }}{% endfor %}{% if add_generation_prompt %}{{ '[bot] ' }}{% endif %}"
)
CODE = ("x = 6", "x = 7", "x * 7", "x", "print(x, x)", "1 / 0", "import os; os._exit(1)")
ANSWERS = ("42", "49")
WORDS = (
    *("<pad>", "<eos>", "<unk>", "[user]", "[bot]", "Observation:", "6", "7"),
    *(f"<execute> {code} </execute>" for code in CODE * 2),
    *(f"<solution> {answer} </solution>" for answer in ANSWERS),
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Builds a tokenizer with one token per word; each cell has two tokens, so that a turn often ends with a cell."""
    vocabulary = {f"{word}{' ' * WORDS[:place].count(word)}": place for place, word in enumerate(WORDS)}
    vocabulary |= {f"w{place}": place for place in range(len(WORDS), tiny_models.VOCAB_SIZE)}
    words = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", chat_template=CHAT_TEMPLATE
    )


def build(folder: Path) -> Path:
    """Saves a random model and the tokenizer."""
    torch.manual_seed(0)
    config = tiny_models.config("qwen3_moe")
    config.max_position_embeddings = 128
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def prompt(id: str) -> Prompt:
    tokens = tokenizer().apply_chat_template([{"role": "user", "content": id}], add_generation_prompt=True)
    return Prompt(id=id, tokens=tuple(tokens["input_ids"]), answer="42")
