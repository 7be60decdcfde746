"""The base class of model folders: tensors under Hugging Face names, which are read by slices."""

import math
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import Manifest
from megatron_sspo.weights.family import DEQUANTIZE
from megatron_sspo.weights.table import ParameterMap, check_coverage, check_tied

_SAMPLED_TENSORS, _SAMPLED_BYTES = 8, 4096  # of each kind of tensor, and of each of these
PIECE_BYTES = 4 * 1024**2  # read at a time, and the maximum of a piece of a Megatron tensor; fits into a cache


def row_ranges(shape: Sequence[int], dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Yields ranges [start, stop) of a tensor's rows that together are the tensor, each of at most PIECE_BYTES."""
    num_rows, *rest = shape or (1,)
    step = max(1, PIECE_BYTES // max(1, math.prod(rest) * dtype.itemsize))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


class ModelFolder:
    """A model folder on disk, of any format: tensors under Hugging Face names, which are read by slices.

    Attributes:
        path: the folder.
        config: the content of config.json.
    """

    path: Path
    config: dict[str, Any]
    config_folder: Path  # the folder with config.json, tokenizer and chat template
    num_padding_rows = 0  # rows of the vocabulary that the files have and the tensors leave out

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape."""
        raise NotImplementedError

    def dtypes(self) -> dict[str, torch.dtype]:
        """Tensor name -> dtype."""
        raise NotImplementedError

    def weight_files(self) -> list[Path]:
        """The files that hold the tensors."""
        raise NotImplementedError

    def fill(self, rows: Tensor, name: str, start: int) -> None:
        """Fills `rows` with those of a tensor from `start` on, which are within it. Threads may call this at once.

        Raises:
            UserError: a file cannot be read, or is damaged.
        """
        raise NotImplementedError

    def check(self, rows: Sequence[ParameterMap]) -> None:
        """Checks that the folder holds exactly the tensors of a weight table, with values that can be trained.

        Raises:
            UserError: names or shapes differ, a tensor is quantized, or a tied copy has other values.
        """
        self._check_not_quantized({name.rpartition(".")[0] for row in rows for name in row.hf})
        check_coverage(rows, self.shapes(), self.path)
        check_tied(rows, self.shapes(), self.read, self.path)

    def fingerprint(self) -> str:
        """Returns a checksum of some weights: of each kind of tensor in several layers, a few kilobytes each.

        It depends neither on the format nor on which file has which tensor. Training changes weights of every kind.
        """
        kinds: dict[str, list[str]] = {}
        for name in sorted(self.shapes()):
            kinds.setdefault(re.sub(r"\d+", "", name), []).append(name)
        crc = 0
        for names in kinds.values():
            for name in names[:: -(-len(names) // _SAMPLED_TENSORS)]:
                num_rows, *rest = self.shapes()[name] or (1,)
                row_bytes = math.prod(rest) * self.dtypes()[name].itemsize
                first, count = num_rows // 2, max(1, _SAMPLED_BYTES // max(1, row_bytes))
                rows = self.read(name, 0, first, min(first + count, num_rows)).flatten().view(torch.uint8)
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
        if name not in self.shapes():
            raise UserError(f"{self.path} has no tensor {name}")
        shape = self.shapes()[name]
        first, last, _ = slice(start, stop).indices(shape[dim]) if shape else (0, 0, 1)
        begin, end = (first, max(first, last)) if dim == 0 else (0, shape[0])
        rows = torch.empty((end - begin, *shape[1:]) if shape else (), dtype=self.dtypes()[name])
        self.fill(rows, name, begin)
        return rows if dim == 0 else rows.narrow(dim, first, last - first).contiguous()

    def close(self) -> None:
        """Lets go of the files and of what is kept of them. A later read opens them again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
