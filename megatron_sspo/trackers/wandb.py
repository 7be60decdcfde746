"""Weights & Biases, which skips steps that it already has."""

from typing import Any

import wandb

from megatron_sspo.trackers.open import About, Tracker


def tracker(about: About, *, project: str) -> Tracker:
    """Starts the run in a project, or continues it."""
    where: dict[str, Any] = {"dir": str(about.folder), "id": about.id_of("wandb"), "resume": "allow"}
    return wandb.init(project=project, name=about.name, config=dict(about.config), **where)
