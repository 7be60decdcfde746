"""Measures a trainer process on one GPU: output layer, shared prompts, whole updates, and the optimizer on the host.

    python benchmarks/on_gpu.py                  # all four, a few minutes
    python benchmarks/on_gpu.py --only updates --pairs 5
    python benchmarks/on_gpu.py --only updates --kind tiny          # tries the script, also without a GPU

Everything is bfloat16. Times are seconds between synchronizations, medians of `--pairs` repetitions; where two variants
are compared, they alternate, and the ratio is the median over pairs. GB is the peak of torch's allocated memory, for
the output layer without what existed before. The models have Qwen3's widths and fewer layers, and random weights.
"""

import argparse
import gc
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import log_probs
import shared_prompts
import torch

from megatron_sspo.errors import first_line
from megatron_sspo.memory.estimate import estimate
from megatron_sspo.memory.parameters import count_all
from megatron_sspo.objective import sspo
from megatron_sspo.policy.distributed import initialize
from megatron_sspo.policy.policy import Policy
from megatron_sspo.processes.cores import num_cores
from megatron_sspo.run import Model, Optimizer, Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Sampling
from megatron_sspo.weights.family import load_family

GIGABYTE = 1e9
WIDTHS = {
    "vocab_size": 151_936, "hidden_size": 2048, "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "max_position_embeddings": 40_960, "tie_word_embeddings": False,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dense": {  # a Qwen3-1.7B with 8 of its 28 layers
        **WIDTHS, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 6144,
    },
    "experts": {  # a Qwen3-30B-A3B with 2 of its 48 layers
        **WIDTHS, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2,
        "num_attention_heads": 32, "intermediate_size": 6144, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "norm_topk_prob": True,
    },
    "tiny": {
        **WIDTHS, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 1,
        "vocab_size": 2048, "hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "intermediate_size": 64,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
    },
}  # fmt: skip
TOKENS = 16_384  # of a microbatch
SHAPES = ("8,256,128", "8,512,512", "16,1024,256", "2,200,4096")  # G, P, R, as in benchmarks/shared_prompts.py
BATCH_TOKENS = 4 * TOKENS  # of separate rows, in the larger batches of shared prompts
HEAD_TOKENS = 4096  # --rows
PEAK_FLOPS = 989e12  # of an H100 or H200 in bfloat16, without sparsity
LOGITS = {name: log_probs.FROM_LOGITS[name] for name in ("ours", "naive log_softmax", "megatron (no entropy)")}
HEADS = {
    "ours": log_probs.ours_recompute,
    "ours, save": log_probs.ours_save,
    "naive": log_probs.naive_head,
    "liger (no entropy)": log_probs.liger_without_entropy,
}

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def seconds(work: Callable[[], Any]) -> float:
    synchronize()
    begun = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begun


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def peak_gigabytes(work: Callable[[], Any]) -> float:
    """Returns the largest memory that is allocated while `work` runs."""
    if DEVICE.type == "cpu":
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_allocated() / GIGABYTE


def free_memory() -> None:
    """Returns the memory of policies that are no longer used."""
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()


def measure_logits(pairs: int) -> None:
    """Prints the time and memory of log-probs from given logits, forward and backward."""
    logits = normal(HEAD_TOKENS, log_probs.VOCABULARY, scale=3)

    def work(function: Callable[..., Any]) -> None:
        part = logits.requires_grad_().view_as(logits)  # ours writes the gradient into them
        values = function(part, labels())[0]
        torch.autograd.grad(values, part, torch.ones_like(values))

    print_variants(f"from {HEAD_TOKENS:,} rows of logits", work, LOGITS, "naive log_softmax", pairs)


def measure_head(pairs: int) -> None:
    """Prints the time and memory of log-probs from hidden states, forward and backward."""
    hidden = normal(HEAD_TOKENS, log_probs.HIDDEN).requires_grad_()
    weight = normal(log_probs.VOCABULARY, log_probs.HIDDEN, scale=3 / log_probs.HIDDEN**0.5).requires_grad_()

    def work(function: Callable[..., Any]) -> None:
        torch.autograd.grad(function(hidden, weight, labels())[0].sum(), (hidden, weight))

    print_variants(f"with the output layer, {HEAD_TOKENS:,} rows", work, HEADS, "naive", pairs)


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(0)
    return (torch.randn(*shape, generator=generator, device=DEVICE) * scale).bfloat16()


def labels() -> torch.Tensor:
    return torch.arange(HEAD_TOKENS, device=DEVICE) * 37 % log_probs.VOCABULARY


def print_variants(
    title: str, work: Callable[[Any], None], variants: Mapping[str, Any], baseline: str, pairs: int
) -> None:
    times: dict[str, list[float]] = {name: [] for name in variants}
    peaks = {}
    for name, function in variants.items():
        try:
            work(function)  # the first call compiles
        except ImportError as error:
            print(f"without {name}: {first_line(error)}")
            del times[name]
            continue
        before = torch.cuda.memory_allocated() / GIGABYTE if DEVICE.type == "cuda" else 0.0
        peaks[name] = peak_gigabytes(lambda chosen=function: work(chosen)) - before
    for _ in range(pairs):
        for name, own in times.items():
            own.append(seconds(lambda chosen=variants[name]: work(chosen)))
    print(f"\n{title}\n| | ms | of {baseline} | GB |\n|---|---|---|---|", flush=True)
    for name, own in times.items():
        ratio = statistics.median(a / b for a, b in zip(own, times[baseline], strict=True))
        print(f"| {name} | {1e3 * statistics.median(own):.1f} | {ratio:.2f} | {peaks[name]:.2f} |", flush=True)


def make_run(model: Path, *, share: bool, prompt: int, response: int) -> Run:
    return Run(
        name="benchmark",
        model=Model(path=str(model), dtype="bfloat16"),
        prompts=Prompts(source="", max_tokens=prompt),
        rollouts=Rollouts(engine="sglang", sampling=Sampling(max_tokens=response)),
        num_updates=100,
        tokens_per_microbatch=TOKENS,
        share_prompts=share,
    )


def write_model(config: Mapping[str, Any], folder: Path) -> Path:
    """Writes a model with random weights, made on the GPU."""
    from transformers import AutoConfig, AutoModelForCausalLM

    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with DEVICE:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def measure_shared_prompts(kind: str, model: Path, pairs: int) -> None:
    """Prints the time of forward and backward with separate and with shared prompts, of one group and of many."""
    policies = {s: Policy(make_run(model, share=s, prompt=256, response=128), model, DEVICE) for s in (False, True)}
    print(f"\nshared prompts, {kind}{policies[True].kernels and ': '}{policies[True].kernels}")
    print("| G, P, R | groups | tokens | separate, ms | shared, ms | ratio | separate, GB | shared, GB |")
    print("|---|---|---|---|---|---|---|---|")
    for shape, is_full in itertools.product(SHAPES, (False, True)):
        responses, prompt, length = map(int, shape.split(","))
        groups = max(1, BATCH_TOKENS // (responses * (prompt + length))) if is_full else 1
        batch = [
            group for seed in range(groups) for group in shared_prompts.make_batch(responses, prompt, length, seed)
        ]

        def work(share: bool, batch: Any = batch) -> None:
            policies[share].gradient(batch, sspo())

        peaks = [peak_gigabytes(lambda s=share: work(s)) for share in (False, True)]
        times = [[seconds(lambda s=share: work(s)) for share in (False, True)] for _ in range(pairs)]
        separate, shared = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        tokens = responses * (prompt + length) / (prompt - 1 + responses * (1 + length))
        ratio = statistics.median(a / b for a, b in times)
        cells = [shape, str(groups), f"{tokens:.2f}", f"{separate:.1f}", f"{shared:.1f}", f"{ratio:.2f}"]
        print(f"| {' | '.join([*cells, *(f'{peak:.2f}' for peak in peaks)])} |", flush=True)


def measure_updates(kind: str, model: Path, pairs: int) -> None:
    """Prints the time of an update and of a pass of π_old, and the memory beside its estimate."""
    prompt, response, responses = 512, 1536, 8
    run = make_run(model, share=False, prompt=prompt, response=response)
    policy = Policy(run, model, DEVICE)
    batch = [group for seed in range(4) for group in shared_prompts.make_batch(responses, prompt, response, seed)]
    tokens = 4 * responses * (prompt + response)
    policy.update(batch, sspo())  # the first compiles, and makes the optimizer's state
    peak = peak_gigabytes(lambda: policy.update(batch, sspo()))
    update = statistics.median(seconds(lambda: policy.update(batch, sspo())) for _ in range(pairs))
    old = statistics.median(seconds(lambda: policy.old_log_probs(batch)) for _ in range(pairs))
    step = statistics.median(seconds(policy.optimizer.step) for _ in range(pairs))
    (expected,) = estimate(run, MODELS[kind], on_cuda=DEVICE.type == "cuda")
    flops = model_flops(MODELS[kind], tokens, 4 * responses * response, prompt + response)
    print(f"\nupdates, {kind}{policy.kernels and ': '}{policy.kernels}")
    print(f"{tokens:,} tokens in sequences of {prompt + response:,}, microbatches of {TOKENS:,}")
    print(
        f"update {update:.3f} s ({tokens / update:,.0f} tokens/s, {flops / update / PEAK_FLOPS:.1%} of the peak), "
        f"pass of π_old {old:.3f} s, optimizer step {step:.4f} s"
    )
    parts = ", ".join(f"{name} {size / GIGABYTE:.2f}" for name, size in vars(expected).items() if size)
    print(
        f"peak {peak:.2f} GB; estimated {(expected.total - expected.allowance) / GIGABYTE:.2f} GB without the "
        f"allowance ({parts})",
        flush=True,
    )
    if DEVICE.type == "cuda":
        print_kernels(lambda: policy.update(batch, sspo()))


def with_layers_that_fit(kind: str) -> dict[str, Any]:
    """Returns the model with as many layers as fit: whole on the GPU, and the optimizer's part on the host as well."""
    one, two = (
        count_all(config).total for config in ({**MODELS[kind], "num_hidden_layers": layers} for layers in (1, 2))
    )
    if DEVICE.type == "cpu":
        return MODELS[kind]
    on_host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 14
    most = 0.85 * min(torch.cuda.mem_get_info()[0] / 18, on_host)  # 18 and 12 bytes a parameter, and 2 of its file
    return {**MODELS[kind], "num_hidden_layers": max(1, int((most - one) / (two - one)) + 1)}


def measure_offload(kind: str, pairs: int) -> None:
    """Prints a policy's memory and the time of its step, with shares of the optimizer on the host."""
    config = with_layers_that_fit(kind)
    parameters = count_all(config).total
    torch.set_num_threads(max(1, num_cores() // max(1, torch.cuda.device_count())))  # as a rank of this node has
    layers = f"{config['num_hidden_layers']} layers, {parameters / 1e9:.2f} B parameters"
    print(f"\noptimizer on the host, {kind}, {layers}, {torch.get_num_threads()} threads")
    print("| share | GB on the GPU | of weights and gradients | step, ms |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(config, Path(folder))
        free_memory()
        for share in (0.0, 0.5, 1.0):
            run = make_run(model, share=False, prompt=512, response=1536)
            policy = Policy(replace(run, optimizer=Optimizer(offload=share)), model, DEVICE)
            policy.optimizer.step()  # makes the optimizer's state
            used = torch.cuda.memory_allocated() / GIGABYTE if DEVICE.type == "cuda" else 0.0
            step = statistics.median(seconds(policy.optimizer.step) for _ in range(pairs))
            print(f"| {share} | {used:.2f} | {6 * parameters / GIGABYTE:.2f} | {1e3 * step:.1f} |", flush=True)
            del policy
            free_memory()


def print_kernels(work: Callable[[], Any], count: int = 15) -> None:
    """Prints the kernels that take most of the GPU's time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        seconds(work)
    entries = sorted(profiler.key_averages(), key=lambda entry: -entry.self_device_time_total)
    total = sum(entry.self_device_time_total for entry in entries)
    print(f"kernels, {total / 1e6:.3f} s in all\n| of the time | calls | kernel |\n|---|---|---|")
    for entry in entries[:count]:
        print(f"| {entry.self_device_time_total / total:.1%} | {entry.count} | {entry.key[:90]} |", flush=True)


def model_flops(config: Mapping[str, Any], tokens: int, response_tokens: int, length: int) -> float:
    """Returns the FLOPs of an update: forward and backward, once; only response tokens pass the output layer."""
    fields = load_family(config).transformer_fields(config)
    hidden, heads, groups, width = (
        fields[name] for name in ("hidden_size", "num_attention_heads", "num_query_groups", "kv_channels")
    )
    inner = config.get("moe_intermediate_size", config["intermediate_size"]) * config.get("num_experts_per_tok", 1)
    layers = fields["num_layers"] * (hidden * width * (2 * heads + 2 * groups) + 3 * hidden * inner)
    products = layers * tokens + hidden * config["vocab_size"] * response_tokens
    causal_pairs = tokens * length / 2
    return 6 * products + 12 * fields["num_layers"] * heads * width * causal_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("head", "shared", "updates", "offload"))
    parser.add_argument("--kind", choices=MODELS, nargs="+", default=["dense", "experts"])
    parser.add_argument("--rows", type=int, default=HEAD_TOKENS, help="of the output layer's tables")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    globals()["HEAD_TOKENS"] = options.rows
    initialize(Parallel(), seed=0)
    if DEVICE.type == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    if options.only in (None, "head"):
        for section in (measure_logits, measure_head):
            section(options.pairs)
            free_memory()
    for kind in options.kind if options.only in (None, "offload") else ():
        measure_offload(kind, options.pairs)
    for kind in options.kind if options.only not in ("head", "offload") else ():
        with tempfile.TemporaryDirectory() as folder:
            model = write_model(MODELS[kind], Path(folder))
            for name, section in (("shared", measure_shared_prompts), ("updates", measure_updates)):
                if options.only in (None, name):
                    section(kind, model, options.pairs)
                    free_memory()


if __name__ == "__main__":
    main()
