"""Measures how the cost of an update grows with tokens, sequence length, experts and ranks, and draws it.

    python benchmarks/growth.py                     # prints the table, and writes docs/images/growth.png

A point is CPU microseconds a token, over all processes, of the forward and backward pass of an update on random
sequences, in float32 with one thread a process: the median of --passes, after one that is not counted. The model has
four layers of hidden size 512 and eight experts of which two are active; where experts grow, a token still takes two.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_prompts import CONFIGS

ROOT = Path(__file__).resolve().parents[1]
BASE = {"tokens": 8192, "length": 512, "experts": 8, "ranks": 1}
GROWTH = {
    "tokens": ("tokens of a batch", (2048, 8192, 32768)),
    "length": ("tokens of a sequence", (32, 128, 512, 2048, 4096)),
    "experts": ("experts", (8, 32, 128)),
    "ranks": ("ranks", (1, 2, 4)),
}


def measure(point: Mapping[str, int], passes: int) -> float:
    """Returns the CPU microseconds a token, over all ranks; called in each of them."""
    import torch

    from megatron_sspo.arrays.convert import log_prob_array, token_array
    from megatron_sspo.objective import sspo
    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.policy.policy import Policy
    from megatron_sspo.run import Model, Parallel, Prompts, Run
    from megatron_sspo.types import Prompt, Rollout, RolloutGroup
    from megatron_sspo.weights.formats.random import write_random_weights

    torch.set_num_threads(1)
    parallel = Parallel(data=point["ranks"])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = {**CONFIGS["experts"], "num_experts": point["experts"]}
        (folder / "config").mkdir()
        (folder / "config" / "config.json").write_text(json.dumps(config), encoding="utf-8")
        write_random_weights(folder / "config", folder / "model", seed=0)
        run = Run(
            name="benchmark",
            model=Model(path=str(folder / "model"), dtype="float32"),
            parallel=parallel,
            prompts=Prompts(source=""),
            num_updates=1,
            tokens_per_microbatch=8192,
        )
        policy = Policy(run, folder / "model", initialize(parallel, seed=0))
    generator = torch.Generator().manual_seed(0)
    groups = []
    for number in range(point["tokens"] // point["length"]):
        tokens = torch.randint(0, config["vocab_size"], (point["length"],), generator=generator).tolist()
        prompt, response = tuple(tokens[:8]), tokens[8:]
        rollout = Rollout(
            tokens=token_array(response),
            rollout_log_probs=log_prob_array([0.0] * len(response)),
            text="",
            finish_reason="stop",
            policy_version=0,
            advantage=(-1.0) ** number,
        )
        groups.append(RolloutGroup(prompt=Prompt(id=str(number), tokens=prompt, answer=""), rollouts=[rollout]))
    seconds = []
    for _ in range(passes + 1):
        begun = time.process_time()
        policy.gradient(groups, sspo())
        used = torch.tensor(time.process_time() - begun)
        torch.distributed.all_reduce(used)
        seconds.append(float(used))
    return 1e6 * statistics.median(seconds[1:]) / point["tokens"]


def run_point(point: Mapping[str, int], passes: int) -> float:
    """Measures a point in processes of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={point['ranks']}", __file__, "--point", json.dumps(point), "--passes", str(passes)]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise SystemExit(f"{point} failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.splitlines()[-1])


def draw(found: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Draws a panel for each quantity that grows, with a common scale of microseconds."""
    from sspo_lab.drawing import import_matplotlib, write_picture

    import_matplotlib()
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(11, 2.8), sharey=True, layout="constrained")
    for axis, (name, points) in zip(axes, found.items(), strict=True):
        axis.plot(list(points), list(points.values()), marker="o", color="#1f6fb2")
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(points), [f"{value:,}" for value in points])
        axis.minorticks_off()
        axis.set_xlabel(GROWTH[name][0])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("CPU µs a token")
    axes[0].set_ylim(bottom=0)
    write_picture(figure, path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images" / "growth.png")
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        microseconds = measure(options.point, options.passes)
        if os.environ["RANK"] == "0":
            print(microseconds)
        return
    found: dict[str, dict[int, float]] = {}
    known: dict[str, float] = {}  # the base point is in every series, and is measured once
    print("| grows | µs a token |\n|---|---|", flush=True)
    for name, (title, values) in GROWTH.items():
        for value in values:
            point: dict[str, Any] = {**BASE, name: value}
            key = json.dumps(point)
            known[key] = known.get(key) or run_point(point, options.passes)
            found.setdefault(name, {})[value] = known[key]
        cells = ", ".join(f"{value:,}: {microseconds:.0f}" for value, microseconds in found[name].items())
        print(f"| {title} | {cells} |", flush=True)
    draw(found, options.output)
    print(f"the figure is {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
