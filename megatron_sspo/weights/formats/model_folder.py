"""The base class of model folders: tensors under Hugging Face names, which are read by slices."""

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import Manifest
from megatron_sspo.weights.family import DEQUANTIZE, load_family, size
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
    """A model folder on disk, of any format: tensors under Hugging Face names, which are read by slices."""

    path: Path
    config: dict[str, Any]
    config_folder: Path  # the folder with config.json, tokenizer and chat template
    num_padding_rows = 0  # rows of the vocabulary that the files have and the tensors leave out
    num_mtp_tensors = 0  # tensors of multi-token prediction, which `shapes` leaves out
    run_manifest: tuple[Path, Manifest] | None = None  # the run's checkpoint that the tensors are in, if they are

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape."""
        raise NotImplementedError

    def dtypes(self) -> dict[str, torch.dtype]:
        """Tensor name -> dtype."""
        raise NotImplementedError

    def weight_files(self) -> list[Path]:
        """The files that hold the tensors."""
        raise NotImplementedError

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Returns rows [start, stop) of a tensor, contiguous; of one without dimensions all of it.

        Threads may call this at once. Raises UserError if a file cannot be read, or is damaged.
        """
        raise NotImplementedError

    def rows(self) -> list[ParameterMap]:
        """Returns the weight table, with the vocabulary as config.json has it. Raises UserError: see `load_family`."""
        return load_family(self.config, self.config_folder).rows(self.config, size(self.config, "vocab_size"))

    def describe_left_out(self) -> str:
        """Returns a sentence about tensors of multi-token prediction that are left out; "" if there are none."""
        self.shapes()
        if not self.num_mtp_tensors:
            return ""
        return (
            f"{self.path}: {self.num_mtp_tensors} tensors of multi-token prediction are left out, because nothing here "
            "trains them"
        )

    def check(self, rows: Sequence[ParameterMap]) -> None:
        """Checks that the folder holds exactly the tensors of a weight table, with values that can be trained.

        Raises UserError if names or shapes differ, a tensor is quantized, or a tied copy has other values.
        """
        modules = {name.rpartition(".")[0] for row in rows for name in row.hf}
        for name, dtype in self.dtypes().items():  # coverage would not say what is wrong
            if (not dtype.is_floating_point or dtype.itemsize < 2) and name.rpartition(".")[0] in modules:
                raise UserError(
                    f"{name} of {self.path} is {dtype}, which is not supported: it is quantized; {DEQUANTIZE}"
                )
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

    def read(self, name: str, dim: int = 0, start: int | None = None, stop: int | None = None) -> Tensor:
        """Returns the slice [start, stop) along `dim` of a tensor, contiguous; by default the whole tensor."""
        shape = self.shapes()[name]
        if not shape:
            return self.read_rows(name, 0, 1)
        first, last, _ = slice(start, stop).indices(shape[dim])
        if dim == 0:
            return self.read_rows(name, first, max(first, last))
        return self.read_rows(name, 0, shape[0]).narrow(dim, first, last - first).contiguous()

    def close(self) -> None:
        """Lets go of the files and of what is kept of them. A later read opens them again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
