"""Times the embedded engine with its key-value cache, beside the same engine with that of Transformers.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py

128 responses to 16 prompts by the model of examples/tiny_moe.py with random weights, greedy, on one thread. Seconds are
CPU seconds, as the median of --rounds in turn. `responses` counts those that have equal tokens with both caches.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
from transformers import DynamicCache

from megatron_sspo.rollout.engines import embedded
from megatron_sspo.types import Prompt, RolloutGroup, Sampling
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.formats.random import write_random_weights

MODEL = Path(__file__).parents[1] / "examples" / "tiny_moe"
LENGTHS = (48, 192, 512)
PROMPTS = [Prompt(id=str(i), tokens=tuple(3 + (7 * i + 3 * j) % 50 for j in range(8)), answer="") for i in range(16)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| tokens of a response | Transformers' cache, s | ours, s | ratio | responses |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        engine = _engine(Path(folder))
        for length in LENGTHS:
            seconds: dict[str, list[float]] = {"theirs": [], "ours": []}
            groups: dict[str, list[RolloutGroup]] = {}
            for _ in range(options.rounds):
                for name, column in seconds.items():
                    begun = time.process_time()
                    groups[name] = _generate(engine, length, name)
                    column.append(time.process_time() - begun)
            theirs, ours = (statistics.median(column) for column in seconds.values())
            first, second = (
                [rollout.tokens.tolist() for group in found for rollout in group.rollouts] for found in groups.values()
            )
            equal = sum(a == b for a, b in zip(first, second, strict=True))
            tokens = sum(map(len, first)) / len(first)
            print(f"| {tokens:.0f} | {theirs:.2f} | {ours:.2f} | {ours / theirs:.2f} | {equal} of {len(first)} |")


def _engine(folder: Path) -> embedded.EmbeddedEngine:
    """Returns an engine for the model with 1,024 positions."""
    sizes, weights = folder / "sizes", folder / "weights"
    shutil.copytree(MODEL, sizes)
    config = json.loads((sizes / "config.json").read_text(encoding="utf-8"))
    (sizes / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}), encoding="utf-8")
    write_random_weights(sizes, weights, seed=0)
    engine = embedded.engine(weights)
    with open_folder(weights) as model:
        engine.load_weights(((name, model.read(name)) for name in model.shapes()), 0)
    return engine


def _generate(engine: embedded.EmbeddedEngine, length: int, cache: str) -> list[RolloutGroup]:
    sampling = Sampling(temperature=0, max_tokens=length)
    if cache == "ours":
        return engine.generate(PROMPTS, sampling, group_size=8, seed=0)
    with (
        mock.patch.object(embedded, "key_value_cache", lambda config: DynamicCache(config=config)),
        mock.patch.object(embedded, "order_without", lambda ended: [i for i, end in enumerate(ended) if not end]),
    ):
        return engine.generate(PROMPTS, sampling, group_size=8, seed=0)


if __name__ == "__main__":
    main()
