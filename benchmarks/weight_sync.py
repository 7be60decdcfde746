"""Measures the overhead of a weight sync: Qwen3-30B-A3B's 18,867 tensors, all of them small, to a real server.

    make install-sglang && python benchmarks/weight_sync.py
    python benchmarks/weight_sync.py --from-several-alone --trainers 8 --servers 2 --server-ranks 2

The model is a Qwen3-MoE of 48 layers with 128 experts and hidden size 64 (145 MB in float32), on servers on this
machine's CPU. Each transport sends all tensors `--rounds` times, after one round that is not counted. The baseline
sends the first 300 tensors with one request each, that is, in buckets of one tensor. Every row includes the fixed cost
of a sync. Microseconds are wall time per tensor. The checksum row is the tensor transport with the checksum of every
tensor compared on both sides. The last two rows are several trainer processes (pipeline stages of two expert ranks
each) with `distributed`: first every rank gathers all weights and rank 0 sends them, then each rank sends its own. A
last sync of theirs compares all checksums, and a difference is an error.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from megatron_sspo.rollout.engines import sglang
from megatron_sspo.run import Model, Parallel, Prompts, Run
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.gather import GatherPlan
from sspo_rehearsal.fake_world import Shardings

TOKENIZER = Path(__file__).parents[1] / "examples" / "tiny_moe"
BASELINE_TENSORS = 300
Named = tuple[str, torch.Tensor]


def write_model(folder: Path) -> dict[str, Any]:
    """Writes config.json and a tokenizer, without weights, and returns the configuration."""
    shutil.copytree(TOKENIZER, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {
        "num_hidden_layers": 48,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": False,
    }
    config.pop("num_local_experts", None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return config


def random_weights(config: dict[str, Any]) -> list[Named]:
    """Returns every tensor of the model with its Hugging Face name."""
    generator = torch.Generator().manual_seed(0)
    rows = load_family(config).rows(config, config["vocab_size"])
    shapes = {name: shape for row in rows for name, shape in zip(row.hf, row.hf_shapes, strict=True)}
    return [(name, torch.randn(shape, generator=generator).mul_(0.02)) for name, shape in shapes.items()]


def median_seconds(folder: Path, urls: Sequence[str], weights: Sequence[Named], rounds: int, **options: Any) -> float:
    """Returns the median seconds of a sync, after one sync that is not counted."""
    engine = sglang.engine(folder, urls=urls, **{"verify_every": 0, **options})
    taken = []
    try:
        for version in range(rounds + 1):
            start = time.perf_counter()
            engine.load_weights(iter(weights), version)
            taken.append(time.perf_counter() - start)
    finally:
        engine.close()
    return statistics.median(taken[1:])


def print_row(name: str, seconds: float, some: Sequence[Named], baseline: float) -> None:
    """Prints the seconds of a sync of some tensors; `baseline` are the baseline's seconds per tensor."""
    each, size = seconds / len(some), sum(tensor.nbytes for _, tensor in some) / 1e6
    print(f"{name:26}{seconds:>10.2f}{each * 1e6:>14.0f}{size / seconds:>8.1f}{each / baseline:>14.4f}", flush=True)


def gather_of(config: dict[str, Any], rank: int, world_size: int) -> GatherPlan:
    """Returns the plan of a trainer process that holds its shards of the weights."""
    layout = Parallel(data=2, pipeline=world_size // 2, expert=2)
    weights = dict(random_weights(config))
    rows = load_family(config).rows(config, config["vocab_size"])
    run = Run(name="sync", model=Model(path=""), prompts=Prompts(source=""), num_updates=1, parallel=layout)
    shards = Shardings(run, rows, config["num_hidden_layers"], config["num_experts"]).of_rank(rank)

    def read(name: str, dim: int, start: int, stop: int) -> torch.Tensor:
        return weights[name].narrow(dim, start, stop - start)

    parameters = {row.name: row.to_megatron(read, *shards[row.name]).clone() for row in rows if row.name in shards}
    return GatherPlan(rows, parameters, shards)


def sync_from_several(
    rank: int, world: int, folder: Path, urls: Sequence[str], rounds: int, options: dict[str, Any]
) -> None:
    """Runs as one of several trainer processes, and writes the median seconds of both ways to gather."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    gather = gather_of(config, rank, world)
    found = {}
    for name in (f"{world} ranks, rank 0 sends", f"{world} ranks, each sends"):
        engine = sglang.engine(folder, urls=urls, transport="distributed", verify_every=0, **options)
        taken = []
        for version in range(rounds + 1):
            dist.barrier()
            start = time.perf_counter()
            engine.load_weights(gather if "each" in name else iter(gather), version)
            taken.append(time.perf_counter() - start)
        engine.close()
        found[name] = statistics.median(taken[1:])
    engine = sglang.engine(folder, urls=urls, transport="distributed", verify_every=1, **options)
    engine.load_weights(gather, rounds + 1)
    engine.close()
    if rank == 0:
        (folder / "several.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bucket-megabytes", type=int, default=64)
    parser.add_argument("--trainers", type=int, default=4, help="trainer processes, an even number (%(default)s)")
    parser.add_argument("--servers", type=int, default=1, help="servers (%(default)s)")
    parser.add_argument("--server-ranks", type=int, default=1, help="tensor-parallel ranks of a server (%(default)s)")
    parser.add_argument("--from-several-alone", action="store_true", help="the baseline and the last two rows alone")
    options: Any = parser.parse_args()
    bucket: dict[str, Any] = {"bucket_bytes": options.bucket_megabytes * 1_000_000}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        config = write_model(folder)
        weights = random_weights(config)
        print(
            f"{len(weights):,} tensors, {sum(t.nbytes for _, t in weights) / 1e6:.0f} MB; starting the servers",
            flush=True,
        )
        server = {"tp_size": options.server_ranks}
        owner: Any = sglang.engine(
            folder, num_servers=options.servers, server=server, run_folder=Path(temporary), verify_every=0
        )
        try:
            os.environ["MEGATRON_SSPO_SERVER_KEY"] = owner.key
            urls = [server.client.url for server in owner.pool.servers]
            bucket["server"] = server
            variants: dict[str, tuple[Sequence[Named], dict[str, Any]]] = {
                "a request a tensor": (weights[:BASELINE_TENSORS], {**bucket, "bucket_bytes": 1}),
                "tensor": (weights, bucket),
                "distributed (gloo)": (weights, {**bucket, "transport": "distributed"}),
                "disk": (weights, {**bucket, "transport": "disk", "run_folder": Path(temporary)}),
                "tensor, with checksums": (weights, {**bucket, "verify_every": 1}),
            }
            print(f"{'':26}{'seconds':>10}{'µs a tensor':>14}{'MB/s':>8}{'of baseline':>14}")
            baseline = 0.0
            if options.from_several_alone:
                variants = {"a request a tensor": variants["a request a tensor"]}
            for name, (some, given) in variants.items():
                seconds = median_seconds(folder, urls, some, options.rounds, **given)
                baseline = baseline or seconds / len(some)
                print_row(name, seconds, some, baseline)
            world = options.trainers
            spawn(sync_from_several, (world, folder, urls, options.rounds, bucket), nprocs=world)
            for name, seconds in json.loads((folder / "several.json").read_text(encoding="utf-8")).items():
                print_row(name, seconds, weights, baseline)
            print("all checksums of the last sync are equal")
        finally:
            owner.close()


if __name__ == "__main__":
    main()
