"""Trackers, which receive the metrics besides metrics.jsonl: TensorBoard, W&B, MLflow, SwanLab, Trackio.

A tracker is started with the facts of a run (`About`), gets the values of each step, and is finished. All attempts at a
run are one run of the tracker, whose id is in a file of the run's folder.
"""

import importlib.util
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_sspo.errors import UserError, first_line
from megatron_sspo.files.reading import read_text
from megatron_sspo.files.writing import write_atomically
from megatron_sspo.run_folder import mlflow_names
from megatron_sspo.run_folder.tracker_thread import Tracker, TrackerThread, finish

if TYPE_CHECKING:
    from megatron_sspo.run import Tracking

_NEW_ID = "remove it, and the tracker begins a new run"
_MLFLOW_METRICS, _MLFLOW_PARAMS, _MLFLOW_VALUE = 1_000, 100, 6_000  # in a request; characters of a parameter's value


@dataclass(frozen=True)
class About:
    """Facts of a run that a tracker is told.

    Attributes:
        folder: the run's folder.
        project: the tracker's project or experiment, from `Tracking`; "" if it has none.
        name: the run's name.
        config: the run's configuration, in JSON.
        first_step: the first step of this attempt. TensorBoard drops steps from there on that an earlier, killed
            attempt wrote.
    """

    folder: Path
    project: str
    name: str
    config: Mapping[str, Any]
    first_step: int


@dataclass(frozen=True)
class Kind:
    """A kind of tracker.

    Attributes:
        module: the module that has to be installed.
        start: a function that starts the tracker. It imports the module, which other runs do not need.
    """

    module: str
    start: Callable[[About], Tracker]


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, about: About) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(about.folder / "tensorboard"), purge_step=about.first_step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Writes the values to disk."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def finish(self) -> None:
        """Closes the file."""
        self._writer.close()


class _Delegating:
    """A tracker whose own object for a run takes the values of a step, and is finished."""

    _run: Any

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Sends the values."""
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        """Ends the run."""
        self._run.finish()


class WeightsAndBiases(_Delegating):
    """A run of Weights & Biases, which skips steps that it already has."""

    def __init__(self, about: About) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        id = _id(about.folder, "wandb_id")
        where: dict[str, Any] = {"dir": str(about.folder), "id": id, "resume": "allow"}
        self._run = wandb.init(project=about.project, name=about.name, config=about.config, **where)


class MLflow:
    """A run of an MLflow experiment, at MLFLOW_TRACKING_URI; a step that is repeated after a kill is there twice."""

    def __init__(self, about: About) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        self._entities, self._client, self._names = mlflow.entities, mlflow.MlflowClient(), mlflow_names.Names()
        path = about.folder / "mlflow_id"
        if path.exists():
            self._id = read_text(path, remedy=_NEW_ID)
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(self._experiment(about.project), run_name=about.name).info.run_id
        values = mlflow_names.parameters(about.config).items()
        params = [mlflow.entities.Param(name, str(value)[:_MLFLOW_VALUE]) for name, value in values]
        for first in range(0, len(params), _MLFLOW_PARAMS):
            self._client.log_batch(self._id, params=params[first : first + _MLFLOW_PARAMS])
        write_atomically(path, self._id)  # last: a run that is continued has its parameters

    def _experiment(self, name: str) -> str:
        """Returns the id of an experiment, which is created if it does not exist."""
        if (found := self._client.get_experiment_by_name(name)) is not None:
            return found.experiment_id
        try:
            return self._client.create_experiment(name)
        except Exception:  # a run that began at the same time may have created it
            if (found := self._client.get_experiment_by_name(name)) is None:
                raise
            return found.experiment_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Sends the values."""
        now = int(time.time() * 1000)
        named = ((self._names.of(key, mlflow_names.clean(key)), value) for key, value in values.items())
        metrics = [self._entities.Metric(name, value, now, step) for name, value in named]
        for first in range(0, len(metrics), _MLFLOW_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _MLFLOW_METRICS])

    def finish(self) -> None:
        """Ends the run."""
        self._client.set_terminated(self._id)


class SwanLab(_Delegating):
    """A run of SwanLab; offline, with SWANLAB_MODE, its files are in the run's folder."""

    def __init__(self, about: About) -> None:
        import swanlab  # pyright: ignore[reportMissingImports]

        where: dict[str, Any] = {"log_dir": str(about.folder / "swanlog"), "id": _id(about.folder, "swanlab_id")}
        self._run = swanlab.init(
            project=about.project, name=about.name, config=dict(about.config), resume="allow", **where
        )


class Trackio(_Delegating):
    """A run of Trackio, whose name ends with its id, because Trackio identifies runs by name."""

    def __init__(self, about: About) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        name = f"{about.name}-{_id(about.folder, 'trackio_id')}"
        self._run = trackio.init(
            project=about.project, name=name, config=dict(about.config), resume="allow", embed=False
        )


# by the field of `Tracking` that asks for it
KINDS = {
    "tensorboard": Kind("tensorboard", TensorBoard),
    "wandb_project": Kind("wandb", WeightsAndBiases),
    "mlflow_experiment": Kind("mlflow", MLflow),
    "swanlab_project": Kind("swanlab", SwanLab),
    "trackio_project": Kind("trackio", Trackio),
}


def check(tracking: "Tracking") -> None:
    """Raises UserError if the run asks for a tracker that is not installed."""
    for _, kind, _ in _asked(tracking):
        spec = importlib.util.find_spec(kind.module)
        if spec is None or spec.origin is None:  # no origin: a mere folder, such as W&B leaves behind
            raise UserError(
                f"tracking asks for {kind.module}, which is not installed: pip install 'megatron-sspo[tracking]'"
            )


def start(
    tracking: "Tracking", folder: Path, name: str, config: Mapping[str, Any], first_step: int
) -> list[TrackerThread]:
    """Starts the trackers that a run asks for.

    Raises:
        UserError: a tracker does not start, for example because it has no key or its server does not answer.
    """
    found: list[TrackerThread] = []
    for field, kind, value in _asked(tracking):
        about = About(folder, value if isinstance(value, str) else "", name, config, first_step)
        try:
            found.append(TrackerThread(kind.module, partial(kind.start, about)))
        except (Exception, SystemExit) as error:
            finish(found)
            raise UserError(
                f"tracking.{field} is {value!r}, but {kind.module} does not start ({first_line(error)}): set it up, or "
                f"leave tracking.{field} out"
            ) from error
    return found


def _asked(tracking: "Tracking") -> Iterator[tuple[str, Kind, str | bool]]:
    """Yields the field, the kind and the field's value of each tracker that a run asks for."""
    for field, kind in KINDS.items():
        if value := getattr(tracking, field):
            yield field, kind, value


def _id(folder: Path, name: str) -> str:
    """Returns the run's id in a tracker, from a file that the first attempt writes."""
    path = folder / name
    if not path.exists():
        write_atomically(path, secrets.token_hex(8))
    return read_text(path, remedy=_NEW_ID)
