"""A model folder of which only config.json is known: its tensors are zeros."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.open_folder import config_file
from megatron_sspo.weights.table import ParameterMap, check_coverage

KNOWN = Path(__file__).parent / "models"


class SizesFolder(ModelFolder):
    """The sizes of a model: config.json, and from it the shapes of all tensors."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        self.path = self.config_folder = Path("config.json")
        rows = load_family(config).rows(self.config, int(config["vocab_size"]))
        self._shapes = {name: shape for row in rows for name, shape in zip(row.hf, row.hf_shapes, strict=True)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape."""
        return self._shapes

    def check(self, rows: Sequence[ParameterMap]) -> None:
        """Compares the shapes: there are no values to check."""
        check_coverage(rows, self._shapes, self.path)

    def read(self, name: str, dim: int = 0, start: int | None = None, stop: int | None = None) -> torch.Tensor:
        """Returns a slice of zeros."""
        shape = list(self._shapes[name])
        shape[dim] = len(range(*slice(start, stop).indices(shape[dim])))
        return torch.zeros(shape, dtype=torch.bfloat16)


def find_config(model_path: str) -> tuple[dict[str, Any], str]:
    """Returns the model's config.json and its origin in words: the model's folder, or the known sizes of a model.

    Raises UserError if the folder does not exist, and its name is not that of a known model.
    """
    folder = Path(model_path)
    if path := config_file(folder):
        return read_json(path), str(path)
    known = {path.stem.lower(): path for path in sorted(KNOWN.glob("*.json"))}
    if (path := known.get(folder.name.lower())) is None:
        raise UserError(
            f"{folder} has no config.json, and the sizes of {folder.name} are not known: put its config.json there (no "
            f"weights are needed), or name one of {', '.join(p.stem for p in known.values())}"
        )
    return read_json(path), f"the sizes of {path.stem}"


def num_experts(config: Mapping[str, Any]) -> int:
    """Returns the number of experts of a layer; 0 for a dense model."""
    return load_family(config).transformer_fields(config).get("num_moe_experts") or 0
