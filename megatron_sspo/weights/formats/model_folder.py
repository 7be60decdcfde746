"""The base class of model folders: tensors under Hugging Face names, which are read by slices."""

import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import Manifest
from megatron_sspo.weights.family import DEQUANTIZE
from megatron_sspo.weights.formats.stored import Files, StoredTensor
from megatron_sspo.weights.table import ParameterMap, check_coverage, check_tied

_SAMPLED_TENSORS, _SAMPLED_BYTES = 8, 4096  # of each kind of tensor, and of each of these


class ModelFolder:
    """A model folder on disk, of any format: tensors under Hugging Face names, which are read by slices.

    Attributes:
        path: the folder.
        config: the content of config.json.
    """

    path: Path
    config: dict[str, Any]
    config_folder: Path  # the folder with config.json, tokenizer and chat template

    def __init__(self) -> None:
        self.files = Files()

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Tensor name -> its location in files."""
        raise NotImplementedError

    @property
    def num_padding_rows(self) -> int:
        """The number of rows of the vocabulary that the files have and `stored` leaves out."""
        return 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape."""
        return {name: tensor.shape for name, tensor in self.stored.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        """Tensor name -> dtype."""
        return {name: tensor.dtype for name, tensor in self.stored.items()}

    def check(self, rows: Sequence[ParameterMap]) -> None:
        """Checks that the folder holds exactly the tensors of a weight table, with values that can be trained.

        Raises:
            UserError: names or shapes differ, a tensor is quantized, or a tied copy has other values.
        """
        self._check_not_quantized({name.rpartition(".")[0] for row in rows for name in row.hf})
        check_coverage(rows, self.shapes(), self.path)
        check_tied(rows, self.stored, self.read, self.path)

    def fingerprint(self) -> str:
        """Returns a checksum of some weights: of each kind of tensor in several layers, a few kilobytes each.

        It depends neither on the format nor on which file has which tensor. Training changes weights of every kind.
        """
        kinds: dict[str, list[str]] = {}
        for name in sorted(self.stored):
            kinds.setdefault(re.sub(r"\d+", "", name), []).append(name)
        crc = 0
        for names in kinds.values():
            for name in names[:: -(-len(names) // _SAMPLED_TENSORS)]:
                tensor = self.stored[name]
                first, count = tensor.num_rows // 2, max(1, _SAMPLED_BYTES // max(1, tensor.row_bytes))
                rows = self.read(name, 0, first, first + count).flatten().view(torch.uint8)
                crc = zlib.crc32(rows.numpy().tobytes(), crc)
        return f"{crc:08x}"

    def manifest_to_check(self) -> tuple[Path, Manifest] | None:
        """Returns the run's checkpoint that the tensors are in, and the part of its manifest about their files.

        None: they are in no run's checkpoint.
        """
        return None

    def _check_not_quantized(self, modules: Collection[str]) -> None:
        """Checks the dtypes of the tensors of a weight table's modules, whatever a quantization calls them.

        Their scales and packed weights have no row, which alone would not say what is wrong.
        """
        for name, dtype in self.dtypes().items():
            if (not dtype.is_floating_point or dtype.itemsize < 2) and name.rpartition(".")[0] in modules:
                raise UserError(
                    f"{name} of {self.path} is {dtype}, which is not supported: it is quantized, and config.json does "
                    f"not say how (quantization_config); {DEQUANTIZE}"
                )

    def read(self, name: str, dim: int = 0, start: int | None = None, stop: int | None = None) -> Tensor:
        """Returns the slice [start, stop) along `dim` of a tensor, contiguous; by default the whole tensor.

        Raises:
            UserError: there is no such tensor, or its file cannot be read.
        """
        if name not in self.stored:
            raise UserError(f"{self.path} has no tensor {name}")
        tensor = self.stored[name]
        first, last = 0, tensor.num_rows
        if dim == 0:
            first, last = slice(start, stop).indices(tensor.num_rows)[:2]
        shape = (max(last - first, 0), *tensor.shape[1:]) if tensor.shape else ()
        if 0 in shape:
            rows = torch.empty(shape, dtype=tensor.dtype)
        else:
            data = torch.empty((last - first, tensor.row_bytes), dtype=torch.uint8)
            self.files.read(tensor, first, last, data.numpy())
            rows = data.view(-1).view(tensor.dtype).view(shape)
        return rows if dim == 0 else rows[(*(slice(None),) * dim, slice(start, stop))].contiguous()

    def close(self) -> None:
        """Closes the files. A later read opens them again."""
        self.files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
