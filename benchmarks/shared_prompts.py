"""Compares an update's forward and backward pass with prompts shared by their group, and with one for each response.

    python benchmarks/shared_prompts.py                          # the shapes of docs/shared_prompts.md
    python benchmarks/shared_prompts.py --kind dense --shapes 8,256,128 --pairs 5
    python benchmarks/shared_prompts.py --rounding               # log-probs in bfloat16, dense model

A shape is G, P, R: responses, tokens of the prompt, tokens of a response. The model has four layers of hidden size 512
and random weights, in float32, and one process with one thread computes a group in one microbatch. Times are CPU
seconds. The passes alternate, and the ratio is the median over pairs of one pass each. With `--memory`, the last
columns are what a pass keeps for its backward pass, by autograd's hooks for saved tensors.

With `--rounding`, the same weights, which bfloat16 holds exactly, compute eight batches in bfloat16 and in float32. A
line has the root mean square of the difference of log-probs for separate and for shared rows.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

BATCHES = 8  # of `--rounding`
ROUNDING_SHAPES = ("8,128,64",)
SHAPES = ("8,256,128", "8,512,512", "16,1024,256", "2,200,4096")
SIZES = {
    "vocab_size": 2048, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768, "norm_topk_prob": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": {**SIZES, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "experts": {**SIZES, **EXPERTS, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]},
}


def write_model(kind: str, folder: Path) -> Path:
    """Writes a model with random weights, and initializes Megatron. Returns the model's folder."""
    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.run import Parallel
    from megatron_sspo.weights.formats.random import write_random_weights

    (folder / "config").mkdir()
    (folder / "config" / "config.json").write_text(json.dumps(CONFIGS[kind]), encoding="utf-8")
    write_random_weights(folder / "config", folder / "model", seed=0)
    initialize(Parallel(), seed=0)
    return folder / "model"


def make_policies(model: Path, dtype: str = "float32") -> dict[bool, Any]:
    """Returns a policy that shares prompts and one that does not, with the same weights."""
    from megatron_sspo.policy.policy import Policy
    from megatron_sspo.run import Model, Prompts, Run

    def make(share: bool) -> Policy:
        run = Run(
            name="benchmark",
            model=Model(path=str(model), dtype=dtype),  # pyright: ignore[reportArgumentType]
            prompts=Prompts(source=""),
            num_updates=1,
            tokens_per_microbatch=1 << 16,
            share_prompts=share,
        )
        return Policy(run, model, torch.device("cpu"))

    return {share: make(share) for share in (False, True)}


def make_batch(responses: int, prompt: int, length: int, seed: int = 0) -> list[Any]:
    """Returns one group of random tokens."""
    from megatron_sspo.types import Prompt, Rollout, RolloutGroup

    generator = torch.Generator().manual_seed(seed)

    def integers(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, SIZES["vocab_size"], (count,), generator=generator).tolist())

    rollouts = [
        Rollout(
            tokens=integers(length), rollout_log_probs=(0.0,) * length, text="", finish_reason="stop",
            policy_version=0, advantage=(-1.0) ** number,
        )
        for number in range(responses)
    ]  # fmt: skip
    return [RolloutGroup(prompt=Prompt(id="0", tokens=integers(prompt), answer=""), rollouts=rollouts)]


def seconds(policy: Any, batch: list[Any]) -> float:
    from megatron_sspo.objective import sspo

    begun = time.process_time()
    policy.gradient(batch, sspo())
    return time.process_time() - begun


def kept_bytes(policy: Any, batch: list[Any]) -> int:
    storages: dict[int, Any] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage  # held, so that no other storage gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        seconds(policy, batch)
    for chunk in policy.chunks:
        for parameter in chunk.parameters():
            storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in storages.values())


def time_passes(policies: dict[bool, Any], kind: str, shapes: Sequence[str], pairs: int, *, memory: bool) -> None:
    """Prints the table of passes."""
    seconds(policies[True], make_batch(2, 32, 32))  # the first pass is slower
    print(f"{kind}, {torch.get_num_threads()} thread, {pairs} pairs", flush=True)
    columns = ["G, P, R", "tokens", "separate", "shared", "ratio"]
    columns += ["kept, separate", "kept, shared"] if memory else []
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for shape in shapes:
        responses, prompt, length = map(int, shape.split(","))
        batch = make_batch(responses, prompt, length)
        times = [[seconds(policies[share], batch) for share in (False, True)] for _ in range(pairs)]
        separate, shared = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(a / b for a, b in times)
        tokens = responses * (prompt + length) / (prompt - 1 + responses * (1 + length))
        cells = [shape, f"{tokens:.2f}", f"{separate:.2f} s", f"{shared:.2f} s", f"{ratio:.2f}"]
        if memory:
            cells += [f"{kept_bytes(policies[share], batch) / 2**20:,.0f} MiB" for share in (False, True)]
        print(f"| {' | '.join(cells)} |", flush=True)


def compare_rounding(model: Path, shapes: Sequence[str]) -> None:
    """Prints how far log-probs in bfloat16 are from those in float32, with separate and with shared rows."""
    round_weights(model)
    exact, rounded = make_policies(model)[False], make_policies(model, "bfloat16")
    for shape in shapes:
        responses, prompt, length = map(int, shape.split(","))
        errors = []
        for seed in range(BATCHES):
            batch = make_batch(responses, prompt, length, seed)
            expected = log_probs(exact, batch)
            errors.append([root_mean_square(log_probs(rounded[share], batch) - expected) for share in (False, True)])
        separate, shared = (root_mean_square(torch.tensor(column)) for column in zip(*errors, strict=True))
        ratios = [b / a for a, b in errors]
        print(
            f"{shape}, {BATCHES} batches: {separate:.3e} with separate rows, {shared:.3e} with shared rows; "
            f"ratio {shared / separate:.3f}, of single batches {min(ratios):.3f} to {max(ratios):.3f}",
            flush=True,
        )


def round_weights(model: Path) -> None:
    """Rounds a model's weights to what bfloat16 holds, so that only the computation differs between dtypes."""
    from safetensors.torch import load_file, save_file

    for path in model.glob("*.safetensors"):
        rounded = {name: tensor.bfloat16().float() for name, tensor in load_file(path).items()}
        save_file(rounded, path, metadata={"format": "pt"})


def log_probs(policy: Any, batch: list[Any]) -> torch.Tensor:
    """Returns log π of all response tokens."""
    found = [rollout.old_log_probs for group in policy.old_log_probs(batch) for rollout in group.rollouts]
    return torch.cat([torch.from_numpy(values) for values in found]).double()


def root_mean_square(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=CONFIGS, help="by default experts, with --rounding dense")
    parser.add_argument("--shapes", nargs="+", metavar="G,P,R")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--rounding", action="store_true", help="compare bfloat16 with float32")
    options = parser.parse_args()
    kind = options.kind or ("dense" if options.rounding else "experts")
    shapes = options.shapes or (ROUNDING_SHAPES if options.rounding else SHAPES)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(kind, Path(folder))
        if options.rounding:
            compare_rounding(model, shapes)
        else:
            time_passes(make_policies(model), kind, shapes, options.pairs, memory=options.memory)


if __name__ == "__main__":
    main()
