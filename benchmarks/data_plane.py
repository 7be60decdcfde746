"""Measures what a token of a rollout costs on its way: in memory, between processes, in microbatches, in a checkpoint.

    python benchmarks/data_plane.py [--sequences 256] [--length 4096] [--processes 2,4]

"Tuples" is a frozen copy of an earlier form, in which a rollout held tuples of Python's numbers, was sent by pickle and
written as JSON. Both forms hold the same random responses, with one log-prob a token and without texts, and are
measured in alternation, as CPU time; the smallest of nine counts. The state is written with `fsync`, and its time is
that of a clock.

The processes measure the resident memory of ranks that do not generate. Every rank computes the same number of tokens,
so the batch grows with the number of ranks. Every rank gets all tuples, but only the arrays that it computes with.
"""

import argparse
import json
import os
import pickle
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from megatron_sspo.batching.holders import Holders, outline
from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.batching.pack import pack
from megatron_sspo.batching.routes import RouterShape, pack_routes
from megatron_sspo.checkpoint.batches import read_batches, write_batches
from megatron_sspo.files.writing import write_atomically
from megatron_sspo.processes import agree
from megatron_sspo.rollout.requests.format import RequestFormat
from megatron_sspo.types import Prompt, Rollout, RolloutGroup

GROUP, PROMPT, VOCABULARY = 16, 256, 151_936
LARGE = 67_108_864  # tokens of 512 prompts, 16 responses each, 8,192 tokens a response
ROUTER = RouterShape(num_layers=48, topk=8, num_experts=128)


@dataclass(frozen=True, slots=True)
class TupleRollout:
    """The earlier form."""

    tokens: tuple[int, ...]
    rollout_log_probs: tuple[float, ...]
    advantage: float


def tuples_from_answer(answer: dict[str, Any]) -> TupleRollout:
    """Converts an engine's answer to the earlier form."""
    tokens = tuple(int(token) for token in answer["output_ids"])
    log_probs = tuple(float(value) for value, *_ in answer["meta_info"]["output_token_logprobs"])
    if tuple(token for _, token, *_ in answer["meta_info"]["output_token_logprobs"]) != tokens:
        raise ValueError("output_ids and output_token_logprobs differ")
    return TupleRollout(tokens, log_probs, 0.5)


def tuples_to_tensors(sequences: list[tuple[tuple[int, ...], TupleRollout]]) -> list[torch.Tensor]:
    """Makes the tensors of a microbatch with loops over tokens, as they were made of the earlier form."""
    tokens: list[int] = []
    positions: list[int] = []
    is_padding: list[bool] = []
    next_tokens: list[int] = []
    borders = [0]
    for prompt, rollout in sequences:
        mask = [True] * len(rollout.tokens)
        response = [token if own else -1 for token, own in zip(rollout.tokens, mask, strict=True)]
        tokens += (*prompt, *rollout.tokens)
        positions += range(len(prompt) + len(response))
        is_padding += [False] * (len(prompt) + len(response))
        next_tokens += [-1] * (len(prompt) - 1) + response + [-1]
        borders.append(len(tokens))
    labels = torch.tensor(next_tokens)
    rows = (labels != -1).nonzero()[:, 0]
    own = [[x for x, own in zip(r.rollout_log_probs, [True] * len(r.tokens), strict=True) if own] for _, r in sequences]
    log_probs = torch.tensor([x for values in own for x in values], dtype=torch.float32)
    lengths = torch.tensor([b - a for a, b in pairwise(borders)])
    order = rows.argsort()
    return [
        torch.tensor(tokens),
        torch.tensor(positions),
        torch.tensor(is_padding),
        labels[rows],
        log_probs,
        lengths,
        order,
    ]


def answers(sequences: int, length: int) -> list[dict[str, Any]]:
    """Returns answers as an SGLang server gives them, parsed from JSON."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(sequences):
        tokens = generator.integers(0, VOCABULARY, length).tolist()
        log_probs = (-generator.exponential(0.3, length)).tolist()
        meta = {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[value, token, None] for value, token in zip(log_probs, tokens, strict=True)],
            "weight_version": "run-0",
        }
        found.append({"output_ids": tokens, "meta_info": meta})
    return found


def prompt(number: int) -> Prompt:
    tokens = np.random.default_rng(number).integers(0, VOCABULARY, PROMPT)
    return Prompt(id=str(number), tokens=tuple(tokens.tolist()), answer="42")


def grouped(rollouts: list[Any]) -> list[RolloutGroup]:
    """Returns groups of up to `GROUP` rollouts, of either form."""
    parts = [rollouts[first : first + GROUP] for first in range(0, len(rollouts), GROUP)]
    return [RolloutGroup(prompt=prompt(number), rollouts=part) for number, part in enumerate(parts)]


def seconds(action: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Returns the smallest time of nine."""
    found = []
    for _ in range(9):
        started = clock()
        action()
        found.append(clock() - started)
    return min(found)


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_one_process(sequences: int, length: int, folder: Path) -> list[tuple[str, str, str]]:
    """Returns rows of (what, tuples, arrays)."""
    given, total = answers(sequences, length), sequences * length
    format = RequestFormat.__new__(RequestFormat)  # without a model's folder: only answers are parsed
    format._run, format._routes = "run", False

    def array_rollout(answer: dict[str, Any]) -> Rollout:
        part = format.parse(answer, PROMPT)
        return Rollout(
            tokens=part.tokens,
            rollout_log_probs=part.log_probs,
            text="",
            finish_reason="stop",
            policy_version=0,
            advantage=0.5,
        )

    forms: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (tuples_from_answer, tuples_to_tensors),
        (array_rollout, make_microbatch),
    ]
    columns: list[list[str]] = []
    for number, (convert, make_tensors) in enumerate(forms):
        some = given[: max(1, min(32, sequences))]
        tokens_of_some = len(some) * length
        tracemalloc.start()
        held = [convert(answer) for answer in answers(len(some), length)]  # answers share numbers with tuples
        memory = tracemalloc.get_traced_memory()[0] / tokens_of_some
        tracemalloc.stop()
        del held
        rollouts = [convert(answer) for answer in given]
        groups = grouped(rollouts)
        sent = pickle.dumps(rollouts, protocol=5)
        row = [(groups[0].prompt.tokens, rollout) for rollout in rollouts[: max(1, 16_384 // (PROMPT + length))]]
        # JSON is measured with few rollouts, because it is slow
        batches = [groups] if number else [groups[:2]]
        written = sum(len(r.tokens) for batch in batches for group in batch for r in group.rollouts)
        path = folder / ("batches.npz" if number else "batches.jsonl")
        write, read = (write_batches, read_batches) if number else (write_json, read_json)
        parse = seconds(lambda convert=convert, some=some: [convert(a) for a in some]) / tokens_of_some
        tensors = seconds(lambda make=make_tensors, row=row: make(row)) / (len(row) * (PROMPT + length))
        saved = seconds(lambda write=write, path=path, batches=batches: write(path, batches), time.perf_counter)
        loaded = seconds(lambda read=read, path=path: read(path), time.perf_counter)
        columns.append(
            [
                f"{memory:.1f} B",
                f"{len(sent) / total:.1f} B",
                f"{seconds(lambda r=rollouts: pickle.dumps(r, protocol=5)) / total * 1e9:.1f} ns",
                f"{seconds(lambda s=sent: pickle.loads(s)) / total * 1e9:.1f} ns",
                f"{parse * 1e9:.0f} ns",
                f"{tensors * 1e9:.0f} ns",
                f"{(parse + tensors) * 1e9:.0f} ns",
                f"{path.stat().st_size / written:.1f} B",
                f"{saved / written * LARGE:.1f} s",
                f"{loaded / written * LARGE:.1f} s",
            ]
        )
    names = (
        *("memory, a token", "on the wire, a token", "pickled, a token", "unpickled, a token"),
        *("answer to rollout, a token", "rollout to microbatch, a token", "answer to microbatch, a token"),
        *(
            "state, a token",
            f"state of {LARGE / 1e6:.0f} M tokens, written",
            f"state of {LARGE / 1e6:.0f} M tokens, read",
        ),
    )
    return list(zip(names, *columns, strict=True))


def write_json(path: Path, batches: list[list[RolloutGroup]]) -> None:
    rows = [{"prompt": asdict(g.prompt), "rollouts": [asdict(r) for r in g.rollouts]} for b in batches for g in b]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_json(path: Path) -> list[list[TupleRollout]]:
    def rollout(row: dict[str, Any]) -> TupleRollout:
        return TupleRollout(tuple(row["tokens"]), tuple(row["rollout_log_probs"]), row["advantage"])

    return [
        [rollout(row) for row in json.loads(line)["rollouts"]] for line in path.read_text(encoding="utf-8").splitlines()
    ]


def routes_row() -> tuple[str, str, str]:
    """Returns the row of the routes of 48 layers with 8 experts of 128; the text is base64 with 4 bytes for 3."""
    chosen = np.random.default_rng(0).integers(0, ROUTER.num_experts, (1024, ROUTER.num_layers, ROUTER.topk))
    found = pack_routes(chosen, ROUTER.num_experts)
    return "routes, a token", f"{-(-found.nbytes // 3) * 4 / len(chosen):.0f} B", f"{found.nbytes / len(chosen):.0f} B"


def of_rank(rank: int, world_size: int, form: str, sequences: int, length: int, path: str, results: Any) -> None:
    """Measures by how much the resident memory of a rank grows, as one data-parallel rank of `world_size`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)
    agree.barrier()
    count = sequences * world_size
    groups: Any = []
    if rank == 0:
        generator = np.random.default_rng(0)
        rollouts = []
        for _ in range(count):
            tokens, log_probs = generator.integers(0, VOCABULARY, length), -generator.exponential(0.3, length)
            rollouts.append(
                TupleRollout(tuple(tokens.tolist()), tuple(log_probs.tolist()), 0.5)
                if form == "tuples"
                else Rollout(
                    tokens=tokens, rollout_log_probs=log_probs, text="", finish_reason="stop", policy_version=0
                )
            )
        groups = grouped(rollouts)
    before = resident()
    if form == "tuples":
        shares = agree.all_gather_objects(dict(enumerate(groups)))
        held: Any = [group for share in shares for group in share.values()]
    else:
        outlines = agree.broadcast_from_rank_0(outline(groups))
        lengths = [len(g.prompt.tokens) + len(r.tokens) for g in outlines for r in g.rollouts]
        plan = pack(lengths, num_ranks=world_size, max_tokens=16_384)
        held = Holders.agree(rank, rank, is_source=True).scatter(groups or outlines, plan)
    results[rank] = (resident() - before) / (sequences * length) if held else 0.0
    agree.barrier()
    dist.destroy_process_group()


def in_several(form: str, world_size: int, sequences: int, length: int) -> float:
    """Returns the growth in bytes for each token that a rank computes, the largest of all ranks but rank 0."""
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        arguments = (world_size, form, sequences, length, f"{folder}/store", results)
        mp.spawn(of_rank, arguments, nprocs=world_size)  # pyright: ignore[reportPrivateImportUsage]
        return max(value for rank, value in results.items() if rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=256, help="responses (default: %(default)s)")
    parser.add_argument("--length", type=int, default=4096, help="tokens of a response (default: %(default)s)")
    parser.add_argument("--processes", default="2,4", help="numbers of processes (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to write to (default: a temporary one)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = [*in_one_process(options.sequences, options.length, Path(folder)), routes_row()]
    for world_size in map(int, filter(None, options.processes.split(","))):
        found = [in_several(form, world_size, options.sequences // 4, options.length) for form in ("tuples", "arrays")]
        name = f"memory of a rank of {world_size}, for each token that it computes"
        rows.append((name, *(f"{value:.0f} B" for value in found)))
    print(f"{options.sequences} responses of {options.length:,} tokens\n\n| | tuples | arrays |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
