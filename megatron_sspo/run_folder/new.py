"""Checks that a new run replaces nothing."""

from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.run_folder import metrics_files

_RESULTS = (metrics_files.METRICS, metrics_files.EVALUATIONS, metrics_files.ROLLOUTS, "model", "curves.png")


def check_is_new(folder: Path) -> None:
    """Raises UserError if a folder holds a run or a model, or files of other names that a new run would overwrite."""
    found = next((name for name in ("config.json", *_RESULTS) if (folder / name).exists()), None)
    if found is None:
        return
    remedy = "choose another folder with --set name=..."
    if found == "config.json":
        found = "a model" if is_model(folder) else "a run"
    if found == "a run":
        remedy = f"continue it with --resume {folder}, or {remedy}"
    raise UserError(f"{folder} already contains {found}, which a new run would replace: {remedy}")


def is_model(folder: Path) -> bool:
    """Returns whether a folder's config.json is a model's. A run's may be damaged: no checkpoint depends on it."""
    try:
        return "model_type" in read_json(folder / "config.json")
    except UserError:
        return False
