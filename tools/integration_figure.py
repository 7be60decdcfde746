"""Draws a figure of docs/integrations.md from a run of an example.

python -m tools.integration_figure runs/trl_sspo/trainer_state.json docs/images/trl_sspo.png
python -m tools.integration_figure runs/verl_sspo/metrics.jsonl docs/images/verl_sspo.png
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

PANELS = {
    "reward": "mean reward",
    "token_weight/below_half": "share of tokens with w < ½",
    "sequence_weight/mean": "mean sequence weight",
}


def read_history(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Returns the unit of time and the metrics of a run: TRL's state, or the lines of examples/verl_sspo.py."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return "step", json.loads(text)["log_history"]
    rows = [json.loads(line) for line in text.splitlines()]
    return "cycle", [{name.removeprefix("actor/"): value for name, value in row.items()} for row in rows]


def main(path: Path, image: Path) -> None:
    """Draws three metrics of a run over time."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    unit, history = read_history(path)
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(9, 2.4), layout="constrained")
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        points = [(entry[unit], entry[name]) for entry in history if name in entry]
        axis.plot(*zip(*points, strict=True), color="#3f51b5", linewidth=1.5)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("optimizer step" if unit == "step" else "cycle of two optimizer steps", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(image, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
