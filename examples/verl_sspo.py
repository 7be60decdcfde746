"""Trains a tiny model with verl's FSDP2 engine and SSPO, on one CPU core, to write sevens (`examples/sevens.py`).

    make install-integrations
    .venv-verl/bin/python -m examples.verl_sspo [FOLDER]    # by default runs/verl_sspo

It prints the reward of each cycle, and writes verl's metrics to FOLDER/metrics.jsonl. Of verl it uses the actor's
engine, its loss function and its configuration; Ray, and the servers that would generate, are left out.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

from examples.sevens import PROMPTS, share_of_sevens, tiny_model, tiny_tokenizer

os.environ["VERL_PLATFORM"] = "cpu"
from verl.plugin.platform.platform_cuda import PlatformCUDA  # pyright: ignore[reportMissingImports]
from verl.plugin.platform.platform_manager import PlatformRegistry  # pyright: ignore[reportMissingImports]

Rows = list[tuple[list[int], list[int]]]  # the tokens of a prompt and of a response

GROUP_SIZE, MAX_TOKENS = 8, 16
ACTOR = {
    "_target_": "verl.workers.config.ActorConfig",
    "strategy": "fsdp2",
    "rollout_n": GROUP_SIZE,
    "ppo_micro_batch_size_per_gpu": 16,
    "loss_agg_mode": "seq-mean-token-mean",
    "policy_loss": {
        "_target_": "megatron_sspo.integrations.verl.PolicyLoss",
        "loss_mode": "megatron_sspo",
        "objective": "sspo()",
    },
}


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):
    """A CPU, which is none of verl's own platforms."""

    device_name, vendor_name, device_module = "cpu", "cpu", torch.cpu

    def is_available(self) -> bool:
        """Returns True."""
        return True

    def current_device(self) -> str:
        """Returns the device of torch."""
        return "cpu"

    def empty_cache(self) -> None:
        """Does nothing."""

    def communication_backend_name(self) -> str:
        """Returns the name of torch.distributed's backend."""
        return "gloo"


def build_engine(folder: Path, tokenizer: Any) -> Any:
    """Saves a model of 22,000 random weights, and returns verl's engine with it."""
    from verl.trainer.config import CheckpointConfig  # pyright: ignore[reportMissingImports]
    from verl.workers.config import (  # pyright: ignore[reportMissingImports]
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
    )
    from verl.workers.engine.fsdp.transformer_impl import (  # pyright: ignore[reportMissingImports]
        FSDPEngineWithLMHead,
    )

    tiny_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    float32 = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
    engine = FSDPEngineWithLMHead(
        model_config=HFModelConfig(
            path=str(folder),
            use_remove_padding=False,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "eager"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", use_torch_compile=False, mixed_precision=float32, model_dtype="fp32"
        ),
        optimizer_config=FSDPOptimizerConfig(lr=3e-3, total_training_steps=60),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


@torch.no_grad()
def sample(model: Any, tokenizer: Any) -> Rows:
    """Returns GROUP_SIZE sampled responses to each prompt."""
    found = []
    for prompt in PROMPTS:
        tokens = torch.tensor(tokenizer(prompt, add_special_tokens=False)["input_ids"]).repeat(GROUP_SIZE, 1)
        length = tokens.shape[1]
        for _ in range(MAX_TOKENS):
            logits = model(input_ids=tokens, use_cache=False).logits[:, -1].float()
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
        for row in tokens.tolist():
            response = row[length:]
            end = response.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in response else MAX_TOKENS
            found.append((row[:length], response[:end]))
    return found


def as_batch(rows: Rows, micro_batch_size: int) -> TensorDict:
    """Returns what verl's trainer hands to its engine, without the advantages."""
    from verl.utils import tensordict_utils  # pyright: ignore[reportMissingImports]

    batch = TensorDict(
        {
            "input_ids": nested([prompt + response for prompt, response in rows]),
            "position_ids": nested([range(len(prompt) + len(response)) for prompt, response in rows]),
            "attention_mask": nested([[1] * (len(prompt) + len(response)) for prompt, response in rows]),
            "loss_mask": nested([[0] * len(prompt) + [1] * len(response) for prompt, response in rows]),
            "prompts": nested([prompt for prompt, _ in rows]),
            "responses": nested([response for _, response in rows]),
            "response_mask": nested([[1] * len(response) for _, response in rows]),
        },
        batch_size=[len(rows)],
    )
    tensordict_utils.assign_non_tensor(
        batch,
        temperature=1.0,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=micro_batch_size,
        use_remove_padding=False,
        global_batch_size=len(rows),
    )
    return batch


def nested(rows: Any) -> torch.Tensor:
    """Returns a jagged tensor of rows of different lengths."""
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in map(list, rows)], layout=torch.jagged)


def old_log_probs(engine: Any, rows: Rows) -> list[list[float]]:
    """Returns log π_old of each response's tokens, by the engine."""
    from verl.workers.utils.padding import no_padding_2_padding  # pyright: ignore[reportMissingImports]

    with engine.eval_mode():
        output = engine.infer_batch(as_batch(rows, len(rows)))
    padded = no_padding_2_padding(output["model_output"]["log_probs"], as_batch(rows, len(rows)))
    return [padded[number, : len(response)].tolist() for number, (_, response) in enumerate(rows)]


def with_advantages(
    rows: Rows, old: list[list[float]], advantages: list[float], micro_batch_size: int = 16
) -> TensorDict:
    """Returns the batch of an update."""
    batch = as_batch(rows, micro_batch_size)
    batch["old_log_probs"] = nested(old)
    batch["advantages"] = nested([[advantage] * len(row) for advantage, (_, row) in zip(advantages, rows, strict=True)])
    return batch


def main(folder: Path, num_cycles: int = 20) -> None:
    """Trains for `num_cycles` generations, with two steps on each, so that ρ is not 1."""
    from verl.utils.config import omega_conf_to_dataclass  # pyright: ignore[reportMissingImports]
    from verl.workers.utils.losses import ppo_loss  # pyright: ignore[reportMissingImports]

    folder.mkdir(parents=True, exist_ok=True)
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    tokenizer = tiny_tokenizer()
    engine = build_engine(folder / "model", tokenizer)
    loss = partial(ppo_loss, omega_conf_to_dataclass(ACTOR))
    with (folder / "metrics.jsonl").open("w") as metrics:
        for cycle in range(num_cycles):
            rows = sample(engine.module, tokenizer)
            texts = [tokenizer.decode(response, skip_special_tokens=True) for _, response in rows]
            rewards = torch.tensor([share_of_sevens(text) for text in texts])
            groups = rewards.view(len(PROMPTS), GROUP_SIZE)
            advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
            old = old_log_probs(engine, rows)
            for _ in range(2):
                with engine.train_mode():
                    found = engine.train_batch(with_advantages(rows, old, advantages.flatten().tolist()), loss)
            numbers = {name: _number(value) for name, value in found["metrics"].items()}
            metrics.write(json.dumps({"cycle": cycle + 1, "reward": float(rewards.mean())} | numbers) + "\n")
            print(f"cycle {cycle + 1}  reward {rewards.mean():.3f}", flush=True)
    dist.destroy_process_group()


def _number(metric: Any) -> float:
    """Returns the number of a metric of verl."""
    return float(metric.aggregate() if hasattr(metric, "aggregate") else metric)


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ["runs/verl_sspo"]))
