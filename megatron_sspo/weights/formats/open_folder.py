"""Opens a model folder of any kind."""

from pathlib import Path

from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.formats.megatron_folder import MegatronFolder
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.torch_dist import is_torch_dist


def open_folder(path: str | Path, config_folder: Path | None = None) -> ModelFolder:
    """Opens a Hugging Face folder, a `torch_dist` checkpoint, or a run's checkpoint, which has the latter in `trainer`.

    Args:
        config_folder: for a Megatron checkpoint without config.json and tokenizer, the folder that has them.

    Raises:
        UserError: `path` is not a model folder, or it is damaged.
    """
    for folder in (Path(path), Path(path) / "trainer"):
        if is_torch_dist(folder):
            return MegatronFolder(folder, config_folder)
    return HFFolder(path)
