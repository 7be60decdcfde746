"""What is evaluated: a Hugging Face folder, a Megatron checkpoint, a checkpoint of a run, or a run's folder."""

import hashlib
import json
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.reading import read_json
from megatron_sspo.state import checkpoints
from megatron_sspo.weights.model_folder import ModelFolder
from megatron_sspo.weights.open_folder import open_folder


def open_model(path: Path, companions: Path | None = None) -> ModelFolder:
    """Opens the weights at `path`; of a run's folder the finished model, or where there is none the newest checkpoint.

    Args:
        companions: config.json and tokenizer of a Megatron checkpoint that has none; a run's checkpoint has those of
            the model that the run started from.

    Raises:
        UserError: there is no such folder, or no weights in it.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}: name a Hugging Face folder, a checkpoint, or the folder of a run")
    if _is_run(path):
        run = path
        found = [path / "model"] if (path / "model").is_dir() else checkpoints(path / "checkpoints")
        if not found:
            raise UserError(f"the run {path} has no model and no checkpoint yet: wait for its first one")
        path = found[-1]
    else:
        run = path.resolve().parent.parent  # of run/checkpoints/update-000100
    if companions is None and not (path / "config.json").exists() and _is_run(run):
        companions = Path(read_json(run / "config.json")["model"]["path"])
    return open_folder(path, companions)


def fingerprint(folder: ModelFolder) -> str:
    """Of configuration and weights: names, sizes and times of the files, whose content would take minutes to read."""
    files = sorted({file for tensor in folder.stored.values() for file in tensor.files})
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([states, folder.config], sort_keys=True).encode()).hexdigest()


def _is_run(path: Path) -> bool:
    config = path / "config.json"
    return config.exists() and read_json(config).get("class") == "Run"
