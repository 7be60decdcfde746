"""Which kind of model folder a path is."""

from pathlib import Path

from megatron_sspo.weights.hf_folder import HFFolder
from megatron_sspo.weights.megatron_folder import MegatronFolder
from megatron_sspo.weights.model_folder import ModelFolder
from megatron_sspo.weights.torch_dist import is_torch_dist


def open_folder(path: str | Path, companions: Path | None = None) -> ModelFolder:
    """A Hugging Face folder, a `torch_dist` checkpoint, or a checkpoint of a run, of which the trainer's part is one.

    Args:
        companions: for a Megatron checkpoint, where config.json and the tokenizer are, if not in the folder itself.

    Raises:
        UserError: there is nothing of the kind, or it is damaged.
    """
    for folder in (Path(path), Path(path) / "trainer"):
        if is_torch_dist(folder):
            return MegatronFolder(folder, companions)
    return HFFolder(path)
