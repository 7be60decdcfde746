"""Compares the parts of a training step with TRL's GRPOTrainer, side by side: `make install-integrations` first.

    python benchmarks/against_trl.py --rounds 5
    python benchmarks/against_trl.py --profile
    python benchmarks/against_trl.py --device cuda --microbatch 4 --rounds 2

Both train the same random weights on the same batch with GRPO: 32 responses to four prompts, in float32 on one thread,
in one pass, or with --microbatch in passes of so many sequences or as many tokens. An update is forward, backward,
clipping and AdamW. TRL pads to the longest response of the batch, as its trainer does. Generation is eight responses
to each of the four prompts, sampled at temperature 1 until 64 tokens: by our engine on Transformers, after copying the
weights into it, and by the trainer's call of Transformers; its time is divided by the tokens. Each side runs in its own
process, in turn; times are CPU seconds, and the ratios are medians over rounds, each of which is printed to stderr.
Memory is the largest resident size of a process up to the end of the updates, libraries included.

With --device cuda the models are slices of larger ones and sequences are eight times as long. Both sides compute in
bfloat16 with weights and AdamW's state in float32, times are seconds of a clock, memory is the peak of what torch has
allocated, and nothing is generated. --trl names another interpreter with TRL than that of `make install-integrations`.

With --profile there is no comparison: it prints which of torch's operators take most of our update's CPU time, and the
rate of the matrix products beside that of one large product.
"""

import argparse
import functools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from side_by_side import kilobytes

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = {"ours": sys.executable, "trl": str(ROOT / ".venv-trl" / "bin" / "python")}
LEARNING_RATE = 1e-5
GROUP_SIZE = 8
NEW_TOKENS = 64  # of a generated response
COMMON = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096}
MODELS: dict[str, dict[str, Any]] = {
    "50 M Qwen3-MoE": {
        **COMMON, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 8192,
        "hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "norm_topk_prob": True,
        "intermediate_size": 1024, "tie_word_embeddings": False,
    },
    "SmolLM2-135M": {
        **COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152,
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
        "intermediate_size": 1536, "tie_word_embeddings": True,
    },
}  # fmt: skip
QWEN3 = {**COMMON, "vocab_size": 151_936, "hidden_size": 2048, "head_dim": 128, "intermediate_size": 6144}
ON_CUDA: dict[str, dict[str, Any]] = {
    "Qwen3-1.7B, 8 of 28 layers": {
        **QWEN3, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
    },
    "Qwen3-30B-A3B, 1 of 48 layers": {
        **QWEN3, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 1,
        "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "norm_topk_prob": True, "tie_word_embeddings": False,
    },
}  # fmt: skip
LONGER = 8  # sequences on CUDA


Parts = dict[str, Callable[[], Any]]  # "update" returns the norm of the gradient, "generation" the number of tokens


def make_batch(vocab_size: int, longer: int = 1) -> list[dict[str, Any]]:
    """Returns 32 sequences: prompts of 60 to 100 tokens, eight responses of 16 to 160 tokens each, times `longer`."""
    drawn = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [drawn.randrange(10, vocab_size) for _ in range(count)]

    sequences = []
    for _ in range(4):
        prompt = tokens(longer * drawn.randint(60, 100))
        for _ in range(8):
            length = longer * min(160, max(16, int(drawn.lognormvariate(3.8, 0.6))))
            sequences.append({"prompt": prompt, "response": tokens(length), "advantage": drawn.choice([-1.0, 1.0])})
    return sequences


def ours(folder: Path, sequences: list[dict[str, Any]], microbatch: int, device: str) -> Parts:
    """Returns the parts of a step by this trainer."""
    from megatron_sspo.objective import grpo
    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.policy.policy import Policy
    from megatron_sspo.rollout.engines import embedded
    from megatron_sspo.run import Model, Optimizer, Parallel, Prompts, Run
    from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling
    from megatron_sspo.weights.formats.hf_folder import HFFolder

    lengths = sorted(len(one["prompt"]) + len(one["response"]) for one in sequences)
    run = Run(
        name="benchmark",
        model=Model(path=str(folder), dtype="float32" if device == "cpu" else "bfloat16"),
        prompts=Prompts(source=""),
        num_updates=100,
        tokens_per_microbatch=sum(lengths[-microbatch:]),
        optimizer=Optimizer(lr=LEARNING_RATE),
    )
    policy = Policy(run, folder, initialize(Parallel(), seed=0))
    groups: dict[tuple[int, ...], list[Rollout]] = {}
    for one in sequences:
        rollout = Rollout(
            tokens=tuple(one["response"]), rollout_log_probs=(-1.0,) * len(one["response"]), text="",
            finish_reason="stop", policy_version=0, advantage=one["advantage"],
        )  # fmt: skip
        groups.setdefault(tuple(one["prompt"]), []).append(rollout)
    prompts = [Prompt(id=str(number), tokens=tokens, answer="") for number, tokens in enumerate(groups)]
    batch = [RolloutGroup(prompt=p, rollouts=rollouts) for p, rollouts in zip(prompts, groups.values(), strict=True)]
    (batch,) = policy.scatter([batch])

    # the engine is built at its first use, after memory was read
    engine = functools.cache(lambda: embedded.engine(folder))

    def generate() -> int:
        stored = HFFolder(folder)
        engine().load_weights(((name, stored.read(name)) for name in stored.index), 0)
        found = engine().generate(prompts, Sampling(max_tokens=NEW_TOKENS), group_size=GROUP_SIZE, seed=0)
        return sum(len(rollout.tokens) for group in found for rollout in group.rollouts)

    return {
        "update": lambda: policy.update(batch, grpo()).grad_norm,
        "log π_old": lambda: policy.old_log_probs(batch),
        "generation": generate,
    }


def trl(folder: Path, sequences: list[dict[str, Any]], microbatch: int, device: str) -> Parts:
    """Returns the parts of a step by TRL's trainer."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    accumulation = len(sequences) // microbatch
    config = GRPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=microbatch, num_generations=GROUP_SIZE,
        max_completion_length=NEW_TOKENS,
        gradient_accumulation_steps=accumulation, learning_rate=LEARNING_RATE, loss_type="grpo", beta=0.0,
        bf16=device == "cuda", use_cpu=device == "cpu", report_to="none", gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "tiny_moe")
    dataset = Dataset.from_dict({"prompt": ["1"] * 64})
    trainer = GRPOTrainer(
        str(folder), lambda **_: [0.0], args=config, train_dataset=dataset, processing_class=tokenizer
    )
    trainer.current_gradient_accumulation_steps = accumulation
    model: Any = trainer.model.to(device)
    model.train()
    optimizer = trainer.create_optimizer()

    def padded(rows: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(map(len, rows))
        filled = [[0] * (longest - len(row)) + row if left else row + [0] * (longest - len(row)) for row in rows]
        mask = [[longest - len(row) <= i if left else i < len(row) for i in range(longest)] for row in rows]
        return torch.tensor(filled, device=device), torch.tensor(mask, device=device).long()

    prompt_ids, prompt_mask = padded([one["prompt"] for one in sequences], left=True)
    completion_ids, completion_mask = padded([one["response"] for one in sequences], left=False)
    advantages = torch.tensor([one["advantage"] for one in sequences], device=device)
    whole = {
        "prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": completion_ids,
        "completion_mask": completion_mask, "advantages": advantages,
    }  # fmt: skip

    def old_log_probs() -> Any:
        ids, mask = torch.cat([prompt_ids, completion_ids], 1), torch.cat([prompt_mask, completion_mask], 1)
        with torch.no_grad(), trainer.accelerator.autocast():
            return trainer._get_per_token_logps_and_entropies(
                model, ids, mask, completion_ids.size(1), batch_size=microbatch
            )

    def update() -> float:
        for start in range(0, len(sequences), microbatch):
            inputs = {name: values[start : start + microbatch] for name, values in whole.items()}
            with trainer.accelerator.autocast():
                loss = trainer.compute_loss(model, inputs)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    def generate() -> int:
        model.eval()
        prompts = [one["prompt"] for one in sequences]  # a group's prompt occurs once for each response
        completions, _ = trainer._generate_single_turn(prompts, None, {}, GROUP_SIZE)
        model.train()
        return sum(map(len, completions))

    return {"update": update, "log π_old": old_log_probs, "generation": generate}


def measure(side: str, folder: Path, microbatch: int, device: str) -> dict[str, float]:
    """Returns seconds of each part, and memory in MB.

    Seconds are the median of three calls, after one that is not counted; those of generation are per token.
    """
    import torch

    torch.set_num_threads(1)
    sequences = json.loads((folder / "batch.json").read_text(encoding="utf-8"))
    parts = {"ours": ours, "trl": trl}[side](folder, sequences, microbatch, device)

    def clock() -> float:
        if device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(part: str) -> float:
        begun = clock()
        parts[part]()
        return clock() - begun

    norm = parts["update"]()
    parts["log π_old"]()
    found = {part: statistics.median(seconds(part) for _ in range(3)) for part in ("update", "log π_old")}
    if device == "cuda":
        return {**found, "memory": torch.cuda.max_memory_allocated() / 1e6, "norm": norm}
    memory = kilobytes("VmHWM") / 1000
    tokens = parts["generation"]()
    generation = statistics.median(seconds("generation") for _ in range(3)) / tokens
    return {**found, "generation": generation, "memory": memory, "norm": norm}


def profile(folder: Path) -> str:
    """Returns the operators that take at least 2 % of an update by our trainer, in Markdown."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    torch.set_num_threads(1)
    sequences = json.loads((folder / "batch.json").read_text(encoding="utf-8"))
    update = ours(folder, sequences, len(sequences), "cpu")["update"]
    update()
    with FlopCounterMode(display=False) as counter:
        update()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        update()
    times = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    total = sum(times.values())
    flops = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    begun = time.process_time()
    for _ in range(50):
        torch.mm(left, right)
    one = 50 * 2 * 1024**3 / (time.process_time() - begun) / 1e9
    shares = [(share / total, name) for name, share in times.items() if share >= 0.02 * total]
    return "\n".join(
        [
            "| operator | of the update |",
            "|---|---|",
            *(f"| {name.removeprefix('aten::')} | {share:.1%} |" for share, name in sorted(shares, reverse=True)),
            "",
            f"mm: {flops / times['aten::mm'] / 1e3:.0f} GFLOP/s; one of 1024 x 1024 x 1024: {one:.0f} GFLOP/s",
        ]
    )


def run_side(side: str, folder: Path, microbatch: int, device: str) -> dict[str, float]:
    """Measures one side in a process of its own."""
    return json.loads(_run(side, folder, microbatch, "--device", device).splitlines()[-1])


def _run(side: str, folder: Path, microbatch: int, *more: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [PYTHONS[side], "-W", "ignore", __file__, "--side", side, "--folder", str(folder)]
    command += ["--microbatch", str(microbatch), *more]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed with exit status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--microbatch", type=int, default=32, help="sequences of a pass")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="+", choices=MODELS | ON_CUDA)
    parser.add_argument("--trl", help="an interpreter with TRL, in place of the one of make install-integrations")
    parser.add_argument("--profile", action="store_true", help="where our update's time goes, without a comparison")
    parser.add_argument("--side", choices=PYTHONS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side and options.profile:
        print(profile(options.folder))
        return
    if options.side:
        print(json.dumps(measure(options.side, options.folder, options.microbatch, options.device)))
        return
    PYTHONS["trl"] = options.trl or PYTHONS["trl"]
    if not options.profile and not Path(PYTHONS["trl"]).exists():
        raise SystemExit(f"{PYTHONS['trl']} is missing: make install-integrations")
    from megatron_sspo.weights.formats.random import write_random_weights

    if not options.profile:
        compared = ["update", "log π_old", *(["generation"] if options.device == "cpu" else [])]
        print(f"| model | {' | '.join(compared)} | memory | first norm of the gradient |", flush=True)
        print(f"|---|{'---|' * len(compared)}---|---|", flush=True)
    for name in options.models or (MODELS if options.device == "cpu" else ON_CUDA):
        config = (MODELS | ON_CUDA)[name]
        with tempfile.TemporaryDirectory() as scratch:
            source, folder = Path(scratch, "config"), Path(scratch, "model")
            shutil.copytree(ROOT / "examples" / "tiny_moe", source)  # for its tokenizer
            (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
            write_random_weights(source, folder, seed=0)
            batch = make_batch(config["vocab_size"], 1 if options.device == "cpu" else LONGER)
            (folder / "batch.json").write_text(json.dumps(batch), encoding="utf-8")
            if options.profile:
                print(f"{name}\n\n{_run('ours', folder, options.microbatch, '--profile')}", flush=True)
                continue
            rounds = []
            for number in range(options.rounds):
                rounds.append({side: run_side(side, folder, options.microbatch, options.device) for side in PYTHONS})
                print(f"{name}, round {number + 1}: {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)

        def ratio(part: str, rounds: list[dict[str, dict[str, float]]] = rounds) -> str:
            values = sorted(one["ours"][part] / one["trl"][part] for one in rounds)
            return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"

        memory = [statistics.median(one[side]["memory"] for one in rounds) for side in PYTHONS]
        norms = [rounds[0][side]["norm"] for side in PYTHONS]
        cells = [
            name,
            *map(ratio, compared),
            f"{memory[0] / memory[1]:.2f} ({memory[0]:,.0f} / {memory[1]:,.0f} MB)",
        ]
        print(f"| {' | '.join(cells)} | {norms[0]:.4f}, {norms[1]:.4f} |", flush=True)


if __name__ == "__main__":
    main()
