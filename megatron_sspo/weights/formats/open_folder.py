"""Opens a model folder of any kind."""

from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json, read_text
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.torch_dist import is_torch_dist

_NEWEST = "latest_checkpointed_iteration.txt"


def open_folder(path: str | Path, config_folder: Path | None = None) -> ModelFolder:
    """Opens a Hugging Face folder, a `torch_dist` checkpoint, or a folder that has such a checkpoint inside.

    The latter is a run's checkpoint, which has it in `trainer`, or a folder that Megatron-LM saves into, whose newest
    checkpoint is opened. A folder of safetensors is a Hugging Face folder, whatever else is in it.

    Args:
        config_folder: for a Megatron checkpoint without config.json and tokenizer, the folder that has them; for one
            of adapters, the base, by default the run's.

    Raises:
        UserError: `path` is not a model folder, or it is damaged.
    """
    checkpoint = _torch_dist(Path(path))
    if checkpoint is None:
        return HFFolder(Path(path))
    from megatron_sspo.weights.formats.adapted_folder import AdaptedFolder, base_of_adapters
    from megatron_sspo.weights.formats.megatron_folder import MegatronFolder

    if base := base_of_adapters(checkpoint, config_folder):
        return AdaptedFolder(checkpoint, open_folder(base))
    return MegatronFolder(checkpoint, config_folder)


def _torch_dist(path: Path) -> Path | None:
    """Returns the `torch_dist` checkpoint that a folder is or has; None for a Hugging Face folder."""
    if is_torch_dist(path):
        return path
    if not any(path.glob("*.safetensors*")):
        if is_torch_dist(path / "trainer"):
            return path / "trainer"
        if (path / _NEWEST).is_file():  # names an iteration, or `release`
            named = read_text(path / _NEWEST).strip()
            return path / (f"iter_{named:0>7}" if named.isdigit() else named)
    return None


def check_config_folder(config_folder: Path | None, *folders: ModelFolder) -> None:
    """Raises UserError if a configuration is given for folders that have their own, which would not read it."""
    if config_folder is not None and all(folder.config_folder != config_folder for folder in folders):
        raise UserError(
            f"--config {config_folder} is for a Megatron checkpoint without config.json, and {folders[0].path} has its "
            "own; leave --config out"
        )


def read_config_of(path: Path) -> dict[str, Any]:
    """Returns the content of the config.json of a model's folder. Raises UserError if there is none."""
    return read_json(config_file(path) or path / "config.json")


def config_file(path: Path) -> Path | None:
    """Returns the config.json of a model's folder; a run's checkpoint has it in its folder `trainer`. None: neither."""
    return next((file for folder in (path, path / "trainer") if (file := folder / "config.json").exists()), None)
