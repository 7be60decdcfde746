"""Compares generation ahead of training with generation that waits for training, on the same work, side by side.

    make install-sglang && python benchmarks/staleness.py

It uses a small Qwen3-MoE, one trainer process and one real SGLang server, with one core each. The policy stays random,
so that every response has the maximum length and all cycles are alike. `max_staleness` 0 and 2 alternate; the first
cycles of each, in which the pipeline fills, are left out. The waiting times are those of the trainer for rollouts, and
of the server without requests. The staleness bound is checked on every batch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from megatron_sspo.rollout.engine import Sampling
from megatron_sspo.run import Model, Optimizer, Prompts, Rollouts, Run

SKIPPED = 4  # updates
MU = 2


def recipe() -> Run:
    """Returns the run of both variants."""
    return Run(
        name="staleness",
        model=Model(path=str(Path(__file__).parents[1] / "examples" / "tiny_moe"), init="random", dtype="float32"),
        prompts=Prompts(source="arithmetic", options={"size": 4000}, template="{question}", max_tokens=16),
        rollouts=Rollouts(
            engine="sglang", prompts_per_update=16, group_size=8, sampling=Sampling(max_tokens=96, stop=())
        ),
        updates_per_sync=MU,
        num_updates=24,
        optimizer=Optimizer(lr=1e-6),
        tokens_per_microbatch=8192,
    )


def measure(folder: Path, max_staleness: int) -> dict[str, float]:
    """Returns the seconds of a cycle, the waiting times in it, and its tokens."""
    command = [sys.executable, "-W", "ignore", "-m", "megatron_sspo", "train", __file__]
    settings = {"rollouts.max_staleness": max_staleness, "output": folder, "name": f"staleness-{max_staleness}"}
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    lines = (folder / f"staleness-{max_staleness}" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][SKIPPED:]
    # the updates within a cycle add at most μ − 1
    assert all(row["rollout/staleness_max"] <= max_staleness + MU - 1 for row in rows), "a rollout is too old"
    seconds = [value for row in rows for key, value in row.items() if key.startswith("seconds/")]
    cycles = len(rows) / MU
    return {
        "cycle": sum(seconds) / cycles,
        "trainer waits": sum(row.get("seconds/rollout", 0.0) for row in rows) / cycles,
        "server waits": sum(row.get("rollout/seconds_idle", 0.0) for row in rows) / cycles,
        "tokens": sum(row["response/tokens"] for row in rows) / cycles,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options: Any = parser.parse_args()
    found: dict[int, list[dict[str, float]]] = {0: [], MU: []}
    for number in range(options.rounds):
        for max_staleness, results in found.items():
            print(f"round {number + 1}/{options.rounds}  max_staleness {max_staleness}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                results.append(measure(Path(folder), max_staleness))
    medians = {
        key: {name: statistics.median(result[name] for result in results) for name in results[0]}
        for key, results in found.items()
    }
    print(f"{'max_staleness':>14}{'cycle, s':>10}{'ratio':>8}{'trainer waits':>15}{'server waits':>14}{'tokens':>9}")
    for key, row in medians.items():
        print(
            f"{key:>14}{row['cycle']:>10.2f}{row['cycle'] / medians[0]['cycle']:>8.2f}{row['trainer waits']:>15.2f}"
            f"{row['server waits']:>14.2f}{row['tokens']:>9.0f}"
        )


if __name__ == "__main__":
    main()
