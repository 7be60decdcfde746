"""Trackio, in which a run's name ends with its id, because Trackio identifies runs by name."""

import trackio

from megatron_sspo.trackers.open import About, Tracker


def tracker(about: About, *, project: str) -> Tracker:
    """Starts the run in a project, or continues it."""
    name = f"{about.name}-{about.id_of('trackio')}"
    return trackio.init(project=project, name=name, config=dict(about.config), resume="allow", embed=False)
