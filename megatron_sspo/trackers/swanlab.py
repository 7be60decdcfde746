"""SwanLab; offline, with SWANLAB_MODE, its files are in the run's folder."""

from typing import Any

import swanlab

from megatron_sspo.trackers.open import About, Tracker


def tracker(about: About, *, project: str) -> Tracker:
    """Starts the run in a project, or continues it."""
    where: dict[str, Any] = {"log_dir": str(about.folder / "swanlog"), "id": about.id_of("swanlab")}
    return swanlab.init(project=project, name=about.name, config=dict(about.config), resume="allow", **where)
