"""The evaluated model: a Hugging Face folder, a Megatron checkpoint, a checkpoint of a run, or a run's folder."""

import hashlib
import json
from pathlib import Path

from megatron_sspo.checkpoint.state import list_checkpoints
from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.open_folder import check_config_folder, open_folder


@os_errors_as_user_errors()
def open_model(path: Path, config_folder: Path | None = None) -> ModelFolder:
    """Opens the weights at `path`; for the folder of a run, its final model or else its newest checkpoint.

    Raises:
        UserError: there is no such folder, it has no weights, or it has a config.json and `config_folder` is given.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}: name a Hugging Face folder, a checkpoint, or the folder of a run")
    config = path / "config.json"
    if config.exists() and read_json(config).get("class") == "Run":
        found = [path / "model"] if (path / "model").is_dir() else list_checkpoints(path / "checkpoints")
        if not found:
            raise UserError(f"the run {path} has no model and no checkpoint yet: wait for its first one")
        path = found[-1]
    folder = open_folder(path, config_folder)
    check_config_folder(config_folder, folder)
    return folder


@os_errors_as_user_errors()
def fingerprint(folder: ModelFolder) -> str:
    """Returns a hash of the configuration and of the weight files' names, sizes and modification times.

    The content of the weight files is not read, because that would take minutes.
    """
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in folder.weight_files()]
    return hashlib.sha256(json.dumps([states, folder.config], sort_keys=True).encode()).hexdigest()
