"""The trackers of a run: opened at its start, given the values of each step, and finished at its end."""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from megatron_sspo.config.resolve import call_with_options, check_options, resolve
from megatron_sspo.errors import UserError, first_line
from megatron_sspo.files.writing import write_atomically

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class About:
    """Facts of a run that a tracker is told."""

    folder: Path  # the run's
    name: str  # the run's
    config: Mapping[str, Any]  # the run's, in JSON
    first_step: int  # of this attempt: TensorBoard drops what an earlier, killed attempt wrote from there on

    def id_of(self, tracker: str) -> str:
        """Returns the run's id in a tracker, from a file that the first attempt writes: all attempts are one run."""
        path = self.folder / f"{tracker}_id"
        if not path.exists():
            write_atomically(path, secrets.token_hex(8))
        return path.read_text(encoding="utf-8")


class Tracker(Protocol):
    """A tracker that has been started, such as the run of a library."""

    def log(self, values: dict[str, float], *, step: int) -> Any:
        """Sends the values of a step."""

    def finish(self) -> Any:
        """Ends the tracker's run."""


class Trackers:
    """All trackers of a run. One that fails is left out from then on, with a warning: the files have every row."""

    def __init__(self, tracking: Any, about: About) -> None:
        self._open: dict[str, Tracker] = {}
        for name, options in asked(tracking):
            try:
                self._open[name] = call_with_options(_find(name), options, f"the tracker {name!r}", about)
            except (Exception, SystemExit) as error:
                self.finish()
                raise UserError(
                    f"the tracker {name} does not start ({first_line(error)}): set it up, or leave it out of tracking"
                ) from error

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Sends the values of a step to every tracker."""
        for name, tracker in [*self._open.items()]:
            self._call(name, f"from update {step} on", lambda tracker=tracker: tracker.log(dict(values), step=step))

    def finish(self) -> None:
        """Ends the run in every tracker."""
        for name, tracker in [*self._open.items()]:
            self._call(name, "at the end", tracker.finish)

    def _call(self, name: str, when: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except (Exception, SystemExit) as error:
            del self._open[name]
            _log.warning("%s gets no metrics %s, because it failed: %s", name, when, first_line(error))


def asked(tracking: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the name and the options of each tracker that a run asks for by its `run.Tracking`."""
    if tracking.tensorboard:
        yield "tensorboard", {}
    if tracking.wandb_project:
        yield "wandb", {"project": tracking.wandb_project}
    yield from tracking.others.items()


def check(tracking: Any) -> None:
    """Raises UserError if the run asks for a tracker that is not there, or with options that it does not have."""
    for name, options in asked(tracking):
        check_options(_find(name), options, f"the tracker {name!r}", num_given=1)


def _find(name: str) -> Callable[..., Tracker]:
    try:
        return resolve("trackers", name, "tracker")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the tracker {name} needs {error.name}, which is not installed: pip install 'megatron-sspo[tracking]'"
        ) from error
