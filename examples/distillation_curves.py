"""Draws the figure of docs/distillation.md from the sweeps of examples/tiny_moe_distill.py.

python examples/distillation_curves.py docs/images/distillation.png runs/distill-*-sweep
"""

import json
import sys
from pathlib import Path

import numpy as np

from sspo_lab.drawing import COLOURS, INK, draw_frame, import_matplotlib, write_picture

NAMES = {
    "divergence": "forward KL to the teacher, top_k=8",
    "sampled_token": "the teacher's log-prob of the sampled token",
    "with_reward": "that and the reward",
    "reward_alone": "the reward alone",
}
WINDOW = 10  # updates


def curve(run: Path) -> np.ndarray:
    """Returns the share of right responses among those sampled for each ten updates in a row."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return np.convolve([row["reward/answer"] for row in rows], np.ones(WINDOW) / WINDOW, mode="valid")


def main(picture: Path, *sweeps: Path) -> None:
    """Draws a line for each run, and a thick one for the mean over the seeds of each sweep."""
    import_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for colour, (label, name) in zip(COLOURS, NAMES.items(), strict=False):
        curves = [curve(run) for sweep in sweeps if label in sweep.name for run in sorted(sweep.glob("seed=*"))]
        for one in curves:
            axis.plot(range(WINDOW, WINDOW + len(one)), one, color=colour, linewidth=0.7, alpha=0.5)
        if curves:
            mean = np.mean(curves, axis=0)
            axis.plot(range(WINDOW, WINDOW + len(mean)), mean, color=colour, linewidth=2, label=name)
    axis.set_xlabel("update", color=INK)
    axis.set_ylabel(f"right of the responses of the last {WINDOW} updates", color=INK)
    axis.set_ylim(bottom=0)
    draw_frame(axis)
    axis.legend(frameon=False)
    write_picture(figure, picture, dpi=110)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
