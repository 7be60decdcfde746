"""Draws the figure of docs/integrations.md: python -m tools.trl_figure runs/trl_sspo/trainer_state.json"""

import json
import sys
from pathlib import Path

import matplotlib

PANELS = {
    "reward": "mean reward",
    "token_weight/below_half": "share of tokens with w < ½",
    "sequence_weight/mean": "mean sequence weight",
}


def main(state: Path) -> None:
    """Draws three metrics of a run by optimizer step into docs/images."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(9, 2.4), layout="constrained")
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        points = [(entry["step"], entry[name]) for entry in history if name in entry]
        axis.plot(*zip(*points, strict=True), color="#3f51b5", linewidth=1.5)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("optimizer step", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).parents[1] / "docs" / "images" / "trl_sspo.png", dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
