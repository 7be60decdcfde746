"""Trains a tiny model in TRL with SSPO, on one CPU core: python examples/trl_sspo.py runs/trl_sspo

The reward is the share of sevens in what the model writes. A model with random weights begins near 0.02. TRL is in
the environment of `make install-integrations`: .venv-trl/bin/python.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig  # pyright: ignore[reportMissingImports]

from megatron_sspo.integrations.trl import SSPOTrainer
from megatron_sspo.objective import sspo


def share_of_sevens(completions: list[str], **_: Any) -> list[float]:
    """Returns the reward of each text."""
    return [text.count("7") / max(len(text), 1) for text in completions]


def main(folder: Path) -> None:
    """Trains for 60 steps, two on each generation, twice over, so that ρ is not 1."""
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parent / "tiny_moe")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    trainer = SSPOTrainer(
        model=Qwen3ForCausalLM(config),
        reward_funcs=share_of_sevens,
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            steps_per_generation=4,
            num_iterations=2,
            num_generations=8,
            max_completion_length=16,
            max_steps=60,
            learning_rate=3e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["1+2=", "30+4=", "5+66=", "7+8="] * 64}),
        processing_class=tokenizer,
        objective=sspo(),
    )
    trainer.train()
    trainer.state.save_to_json(str(folder / "trainer_state.json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
