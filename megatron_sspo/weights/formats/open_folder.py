"""Opens a model folder of any kind."""

import re
from pathlib import Path

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.files.reading import read_text
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.formats.megatron_folder import MegatronFolder
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.safetensors_file import has_safetensors
from megatron_sspo.weights.formats.torch_dist import is_torch_dist

_NEWEST = "latest_checkpointed_iteration.txt"


def open_folder(path: str | Path, config_folder: Path | None = None) -> ModelFolder:
    """Opens a Hugging Face folder, a `torch_dist` checkpoint, or a folder that has such a checkpoint inside.

    The latter is a run's checkpoint, which has it in `trainer`, or a folder that Megatron-LM saves into, whose newest
    checkpoint is opened. A folder of safetensors is a Hugging Face folder, whatever else is in it.

    Args:
        config_folder: for a Megatron checkpoint without config.json and tokenizer, the folder that has them.

    Raises:
        UserError: `path` is not a model folder, or it is damaged.
    """
    if is_torch_dist(Path(path)):
        return MegatronFolder(path, config_folder)
    if has_safetensors(Path(path)):
        return HFFolder(path)
    if is_torch_dist(Path(path) / "trainer"):
        return MegatronFolder(Path(path) / "trainer", config_folder)
    if (Path(path) / _NEWEST).is_file():
        return MegatronFolder(_newest(Path(path)), config_folder)
    return HFFolder(path)


def check_config_folder(config_folder: Path | None, *folders: ModelFolder) -> None:
    """Raises UserError if a configuration is given for Hugging Face folders alone, which would not read it."""
    if config_folder is not None and all(isinstance(folder, HFFolder) for folder in folders):
        raise UserError(
            f"--config {config_folder} is for a Megatron checkpoint, and {folders[0].path} is a Hugging Face folder "
            "that has its own config.json; leave --config out"
        )


def config_file(path: Path) -> Path | None:
    """Returns the config.json of a model's folder; a run's checkpoint has it in its folder `trainer`. None: neither."""
    return next((file for folder in (path, path / "trainer") if (file := folder / "config.json").exists()), None)


def _newest(path: Path) -> Path:
    """Returns the checkpoint that Megatron-LM would load: that of an iteration, or the one called `release`."""
    named = read_text(path / _NEWEST).strip()
    if named != "release" and not re.fullmatch(r"[0-9]{1,18}", named):
        raise UserError(f"{path / _NEWEST} names no checkpoint but {short_repr(named)}; give the path of a checkpoint")
    folder = path / (named if named == "release" else f"iter_{int(named):07d}")
    if not is_torch_dist(folder):
        raise UserError(
            f"{path / _NEWEST} names {folder.name}, which is not a torch_dist checkpoint; give the path of one that is"
        )
    return folder
