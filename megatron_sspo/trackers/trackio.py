"""Trackio, in which a run's name ends with its id, because Trackio identifies runs by name."""

import trackio

from megatron_sspo.trackers.open import About, Tracker
from megatron_sspo.trackers.run_of_a_library import RunOfALibrary


def tracker(about: About, *, project: str) -> Tracker:
    """Starts the run in a project, or continues it."""
    name = f"{about.name}-{about.id_of('trackio')}"
    found = trackio.init(project=project, name=name, config=dict(about.config), resume="allow", embed=False)
    return RunOfALibrary(found)
