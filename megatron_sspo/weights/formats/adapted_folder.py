"""A run's checkpoint of adapters, which has their factors alone, as the model that they make of the base."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import NAME, read_manifest
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.formats.megatron_folder import MegatronFolder
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.random import INITIAL_MODEL
from megatron_sspo.weights.lora import factors_of
from megatron_sspo.weights.table import ParameterMap


def base_of_adapters(path: Path, given: Path | None) -> Path | None:
    """Returns the folder of the base; None if the checkpoint is not of adapters.

    `path` is the folder `trainer` of a run's checkpoint, or another checkpoint, and `given` the base, if the run's has
    been moved. Raises UserError if there is no such folder.
    """
    checkpoint = path.absolute().parent
    if not (checkpoint / NAME).exists() or not (run := read_manifest(checkpoint).run).get("lora"):
        return None
    is_random = run["model"]["init"] == "random"
    base = given or (checkpoint.parents[1] / INITIAL_MODEL if is_random else Path(run["model"]["path"]))
    if not base.is_dir():
        raise UserError(f"{path} has adapters alone, and there is no {base}, their base: name its folder with --config")
    return base


class AdaptedFolder(ModelFolder):
    """The base with (α/r) · B A added to its weights, in the dtype of the factors.

    `path` is the folder `trainer` of the checkpoint of a run of adapters, and `base` the model that the run began with.
    Raises UserError if the base has other weights, or the checkpoint is damaged or has not exactly the run's factors.
    """

    def __init__(self, path: Path, base: ModelFolder) -> None:
        self.path, self._base = path, base
        self.config, self.config_folder = base.config, base.config_folder
        checkpoint = path.absolute().parent
        if base.fingerprint() != read_json(checkpoint / "state.json").get("initial_weights"):
            raise UserError(
                f"{base.path} has other weights than those that {path} has adapters of: name their base with --config"
            )
        lora = read_manifest(checkpoint).run["lora"]
        factors = factors_of(base.rows(), lora["targets"], lora["rank"])
        self._factors = MegatronFolder(path, rows=[row for pair in factors for row in (pair.a, pair.b)])
        self.run_manifest = self._factors.run_manifest
        self._scale: float = lora["alpha"] / lora["rank"]
        self._dtype = next(iter(self._factors.dtypes().values()))
        self._own = {name: row.dtype for row in base.rows() for name in row.hf if row.dtype is not None}
        self._pairs = {
            name: names for pair in factors for name, *names in zip(pair.weight.hf, pair.a.hf, pair.b.hf, strict=True)
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._base.shapes()

    def dtypes(self) -> dict[str, torch.dtype]:
        return dict.fromkeys(self.shapes(), self._dtype) | self._own

    def weight_files(self) -> list[Path]:
        return [*self._base.weight_files(), *self._factors.weight_files()]

    def check(self, rows: Sequence[ParameterMap]) -> None:
        self._base.check(rows)

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        rows = self._base.read_rows(name, start, stop).to(self._own.get(name, self._dtype))
        if name not in self._pairs:
            return rows
        a, b = self._pairs[name]
        delta = self._factors.read_rows(b, start, stop).float() @ self._factors.read(a).float()
        return (rows.float() + self._scale * delta).to(self._dtype)

    def close(self) -> None:
        self._base.close()
        self._factors.close()
