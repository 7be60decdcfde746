"""MLflow, at MLFLOW_TRACKING_URI; a step that is repeated after a kill is there twice."""

import re

import mlflow

from megatron_sspo.files.writing import write_atomically
from megatron_sspo.trackers.open import About, Tracker

_REFUSED = re.compile(r"[^\w./\- :]")  # characters that a name may not have, as in pass@1


class _MLflow:
    def __init__(self, about: About, experiment: str) -> None:
        path = about.folder / "mlflow_id"
        mlflow.set_experiment(experiment)
        if path.exists():
            mlflow.start_run(run_id=path.read_text(encoding="utf-8"))
        else:
            run = mlflow.start_run(run_name=about.name)
            mlflow.log_dict(dict(about.config), "config.json")
            write_atomically(path, run.info.run_id)

    def log(self, values: dict[str, float], *, step: int) -> None:
        mlflow.log_metrics({_name(key): value for key, value in values.items()}, step=step, synchronous=False)

    def finish(self) -> None:
        mlflow.flush_async_logging()
        mlflow.end_run()


def _name(key: str) -> str:
    """Returns held_out/pass_1.low for held_out/pass@1/low: in MLflow's file store, held_out/pass_1 is a file."""
    group, slash, name = _REFUSED.sub("_", key).partition("/")
    return f"{group}{slash}{name.replace('/', '.')}"


def tracker(about: About, *, experiment: str) -> Tracker:
    """Starts the run in an experiment, or continues it. pass@1 becomes pass_1."""
    return _MLflow(about, experiment)
