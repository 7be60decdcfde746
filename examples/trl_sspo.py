"""Trains a tiny model in TRL with SSPO, on one CPU core, to write sevens (`examples/sevens.py`).

    make install-integrations
    .venv-trl/bin/python -m examples.trl_sspo [FOLDER]      # by default runs/trl_sspo

It prints TRL's metrics, and writes them to FOLDER/trainer_state.json.
"""

import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig  # pyright: ignore[reportMissingImports]

from examples.sevens import PROMPTS, share_of_sevens, tiny_model, tiny_tokenizer
from megatron_sspo.integrations.trl import SSPOTrainer
from megatron_sspo.objective import sspo


def reward(completions: list[str], **_: Any) -> list[float]:
    """Returns the reward of each text, as TRL asks for it."""
    return [share_of_sevens(text) for text in completions]


def main(folder: Path) -> None:
    """Trains for 60 steps, two on each generation, twice over, so that ρ is not 1."""
    tokenizer = tiny_tokenizer()
    trainer = SSPOTrainer(
        model=tiny_model(tokenizer),
        reward_funcs=reward,
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
        train_dataset=Dataset.from_dict({"prompt": [*PROMPTS] * 64}),
        processing_class=tokenizer,
        objective=sspo(),
    )
    trainer.train()
    trainer.state.save_to_json(str(folder / "trainer_state.json"))


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ["runs/trl_sspo"]))
