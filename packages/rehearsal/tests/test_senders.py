"""The ranks that send weights to servers at full size: each sends its share, and little is exchanged before."""

from collections import Counter
from typing import Any

import pytest

from megatron_sspo.memory.parameters import padded_vocab_size
from megatron_sspo.run import Model, Parallel, Prompts, Run
from megatron_sspo.weights.collectors import assign, row_size, source
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.pieces import pieces_of
from sspo_rehearsal.fake_world import Shardings
from sspo_rehearsal.sizes import find_config

# layout -> the senders, and the largest share of all weights that one of them receives from other ranks
LAYOUTS: dict[str, tuple[str, Parallel, int, float]] = {
    "EP8": ("Qwen/Qwen3-30B-A3B", Parallel(data=8, expert=8), 8, 0.0),
    "PP2 EP8": ("Qwen/Qwen3-30B-A3B", Parallel(data=8, pipeline=2, expert=8), 8, 0.07),
    "TP2 PP2 EP8": ("Qwen/Qwen3-30B-A3B", Parallel(data=8, tensor=2, pipeline=2, expert=8), 8, 0.07),
    "TP2 PP4 EP16": ("Qwen/Qwen3-30B-A3B", Parallel(data=32, tensor=2, pipeline=4, expert=16), 8, 0.12),
    "TP2 PP4 CP2 EP8": ("Qwen/Qwen3-30B-A3B", Parallel(data=64, tensor=2, pipeline=4, context=2, expert=8), 8, 0.1),
    "TP2 PP3 EP4": ("Qwen/Qwen3-30B-A3B", Parallel(data=8, tensor=2, pipeline=3, expert=4), 6, 0.1),
    "dense TP4": ("Qwen/Qwen3-8B", Parallel(data=2, tensor=4), 1, 0.75),
    "dense TP2 PP4": ("Qwen/Qwen3-8B", Parallel(data=2, tensor=2, pipeline=4), 4, 0.16),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_sender_has_much_more_than_its_share(name: str) -> None:
    path, parallel, count, most = LAYOUTS[name]
    config, _ = find_config(path)
    family = load_family(config)
    rows = family.rows(config, padded_vocab_size(int(config["vocab_size"]), parallel.tensor))
    architecture: Any = family.transformer_fields(config)
    run = Run(name="r", model=Model(path=path), prompts=Prompts(source="s"), num_updates=1, parallel=parallel)
    shardings = Shardings(run, rows, architecture["num_layers"], architecture.get("num_moe_experts") or 0)
    assigned = assign(pieces_of(rows, shardings.holders()), max_collectors=8)
    sent = {rank: sum(map(row_size, rows)) for rank, rows in assigned.items()}
    received: Counter[int] = Counter()
    for rank, some in assigned.items():
        received[rank] = sum(p.size for row in some for p in row if source(p, rank) != rank)
    total = sum(sent.values())
    print(name, {rank: round(size * 2e-9, 2) for rank, size in sent.items()}, max(received.values()) / total)
    assert total == sum(map(row_size, pieces_of(rows, shardings.holders())))
    assert len(sent) == count
    assert max(sent.values()) <= 1.25 * total / count
    assert max(received.values()) <= most * total
