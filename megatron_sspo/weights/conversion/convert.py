"""Conversion of a Hugging Face folder to a Megatron checkpoint or back, a tensor at a time."""

import os
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.units import format_bytes
from megatron_sspo.weights.conversion.progress import Meter, check_content, print_padding
from megatron_sspo.weights.family import load_family, size
from megatron_sspo.weights.formats import torch_dist
from megatron_sspo.weights.formats.checkpoint_keys import CheckpointKeys
from megatron_sspo.weights.formats.companions import check_text_files, copy_tokenizer_files, write_config
from megatron_sspo.weights.formats.destination import check_destination, new_folder, real_path
from megatron_sspo.weights.formats.hf_folder import INDEX, HFFolder, file_names, index_text
from megatron_sspo.weights.formats.model_folder import ModelFolder, row_ranges
from megatron_sspo.weights.formats.open_folder import check_config_folder, open_folder
from megatron_sspo.weights.formats.safetensors_file import BlockWriter, bytes_of, make_header
from megatron_sspo.weights.formats.torch_dist import NewPiece
from megatron_sspo.weights.table import ParameterMap

NUM_THREADS = min(4, os.cpu_count() or 1)  # each writes a file of its own; more do not write a disk faster
FILE_BYTES = 1_000_000_000  # maximum of a file, unless one tensor is larger

Direction = Literal["megatron", "hf"]


@dataclass(frozen=True)
class Summary:
    """The result of a conversion."""

    direction: Direction
    num_tensors: int
    num_bytes: int


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    dtype: torch.dtype | None = None,
    config_folder: Path | None = None,
    to: Direction | None = None,
) -> Summary:
    """Converts a Hugging Face folder to a `torch_dist` checkpoint, or such a checkpoint to a Hugging Face folder.

    All checks run before the first byte is written: every tensor has a row, every row has its tensors, and names,
    shapes and dtypes match. The destination appears under its name only when it is complete and on disk.

    Args:
        dtype: the dtype that tensors are cast to; None keeps every byte as it is.
        config_folder: the Hugging Face folder with config.json and tokenizer, for a Megatron checkpoint without them.
        to: the expected direction; a source of the other kind is refused.

    Raises:
        UserError: the source, the destination or an option is wrong; the message names the file and the tensor.
    """
    destination = real_path(destination)
    with os_errors_as_user_errors(destination):
        sources = [Path(source), *([config_folder] if config_folder else [])]
        check_destination(destination, sources)
        with open_folder(source, config_folder) as folder:
            direction: Direction = "megatron" if isinstance(folder, HFFolder) else "hf"
            if to is not None and to != direction:
                kinds = {"megatron": "a Hugging Face folder", "hf": "a Megatron checkpoint"}
                raise UserError(f"--to {to} needs {kinds[to]}, and {source} is {kinds[direction]}")
            check_config_folder(config_folder, folder)
            check_text_files(folder.config_folder)
            rows = load_family(folder.config, folder.config_folder).rows(
                folder.config, size(folder.config, "vocab_size")
            )
            folder.check(rows)
            check_content(folder)
            print_padding(folder)
            with new_folder(destination, sources) as path, ThreadPoolExecutor(NUM_THREADS) as threads:
                with Meter(f"{folder.path} -> {destination}") as meter:
                    rows_of = _Rows(folder, dtype, meter)
                    write = _write_megatron if direction == "megatron" else _write_hf
                    summary = write(path, rows_of, rows, threads)
                copy_tokenizer_files(folder.config_folder, path)
                write_config(folder.config, path, set(rows_of.dtypes.values()))
    return summary


class _Rows:
    """The rows of a folder's tensors, cast unless the dtype is None. A thread overwrites what it has read last."""

    def __init__(self, folder: ModelFolder, new_dtype: torch.dtype | None, meter: Meter) -> None:
        self.folder, self.meter = folder, meter
        self.dtypes = {name: new_dtype or dtype for name, dtype in folder.dtypes().items()}
        self._memory = threading.local()

    def of_tensor(self, name: str, start: int, stop: int) -> Tensor:
        """Returns rows [start, stop) of a tensor."""
        rows = self._rows(stop - start, self.folder.shapes()[name], self.dtypes[name])
        self._fill(rows, name, start)
        return rows

    def of_parameter(self, row: ParameterMap, start: int, stop: int) -> Tensor:
        """Returns rows [start, stop) of a Megatron parameter."""
        rows = self._rows(stop - start, row.shape(1), self.dtypes[row.hf[0]])
        at = 0
        for block in row.row_blocks():
            first, last = max(start, at), min(stop, at + block.size)
            if block.source is not None and first < last:
                self._fill(rows[first - start : last - start], row.hf[block.source], block.start + first - at)
            at += block.size
        return rows

    def _rows(self, count: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns memory, which is used again because new memory takes as long as the copy into it."""
        shape = (count, *shape[1:])
        if prod(shape) * dtype.itemsize > len(getattr(self._memory, "all", b"")):
            self._memory.all = bytearray(prod(shape) * dtype.itemsize)
        return torch.frombuffer(self._memory.all, dtype=dtype, count=prod(shape)).view(shape)

    def _fill(self, rows: Tensor, name: str, start: int) -> None:
        self.meter.advance(rows.nbytes)
        if rows.dtype == self.folder.dtypes()[name]:
            self.folder.fill(rows, name, start)
            return
        found = self.folder.read(name, 0, start, start + len(rows))
        if (rows.copy_(found).isinf() & found.isfinite()).any():
            raise UserError(
                f"{name} of {self.folder.path} has values beyond {torch.finfo(rows.dtype).max:.4g}, the largest of "
                f"{_name(rows.dtype)}; choose another --dtype, or leave it out"
            )


def _write_megatron(path: Path, rows_of: _Rows, rows: Sequence[ParameterMap], threads: ThreadPoolExecutor) -> Summary:
    """Writes a checkpoint whose pieces are each some rows of one parameter, of one layer and expert."""
    keys = CheckpointKeys(row.name for row in rows)
    leading = keys.leading_sizes()
    first: dict[str, str] = {}
    aliases: dict[str, str] = {}
    pieces: list[NewPiece] = []
    for row in rows:
        location, *others = keys.locations(row.name)
        # the second key that Megatron's own specs have for it, if it is stacked over the layers in the same way
        aliases |= {other.key: location.key for other in others if len(other.index) == len(location.index)}
        for name in row.hf:
            other = first.setdefault(location.key, name)
            if rows_of.dtypes[name] != rows_of.dtypes[other]:
                raise UserError(
                    f"{other} is {_name(rows_of.dtypes[other])} and {name} is {_name(rows_of.dtypes[name])}, but "
                    f"Megatron stores both in one tensor, {location.key}; cast all tensors to one dtype with --dtype"
                )
        dtype, (num_rows, *rest) = rows_of.dtypes[row.hf[0]], row.shape(1)
        for start, stop in row_ranges(row.shape(1), dtype):
            pieces.append(
                NewPiece(
                    location.key,
                    (*leading[location.key], num_rows, *rest),
                    (*location.index, start, *(0 for _ in rest)),
                    (*(1 for _ in location.index), stop - start, *rest),
                    dtype,
                    partial(rows_of.of_parameter, row, start, stop),
                )
            )
    groups = _groups([piece.num_bytes for piece in pieces])
    num_bytes = _begin(path, rows_of, sum(piece.num_bytes for piece in pieces))
    files = [[pieces[i] for i in group] for group in groups]
    torch_dist.write(path, files, aliases=aliases, none_keys=keys.extra_state_keys(), threads=threads)
    return Summary("megatron", len(rows), num_bytes)


def _write_hf(path: Path, rows_of: _Rows, rows: Sequence[ParameterMap], threads: ThreadPoolExecutor) -> Summary:
    """Writes safetensors files, with the tensors in the order of the table."""
    shapes = {name: shape for row in rows for name, shape in zip(row.hf, row.hf_shapes, strict=True)}
    names = list(shapes)
    sizes = [prod(shapes[name]) * rows_of.dtypes[name].itemsize for name in names]
    num_bytes = _begin(path, rows_of, sum(sizes))
    files = [[names[i] for i in group] for group in _groups(sizes)]

    def write(file_name: str, names: Sequence[str]) -> None:
        with BlockWriter(path / file_name) as file:
            file.write(make_header({name: (shapes[name], rows_of.dtypes[name]) for name in names}))
            for name in names:
                for start, stop in row_ranges(shapes[name], rows_of.dtypes[name]):
                    file.write(bytes_of(rows_of.of_tensor(name, start, stop)))

    list(threads.map(write, file_names(len(files)), files))
    if len(files) > 1:
        placed = {name: file for file, group in zip(file_names(len(files)), files, strict=True) for name in group}
        (path / INDEX).write_text(index_text(placed, num_bytes), encoding="utf-8")
    return Summary("hf", len(names), num_bytes)


def _begin(path: Path, rows_of: _Rows, num_bytes: int) -> int:
    """Checks that there is room for the bytes to be written into a folder, and starts the display. Returns them."""
    if num_bytes > (free := shutil.disk_usage(path).free):
        raise UserError(
            f"the disk of {path} is too full: the conversion needs {format_bytes(num_bytes)}, and "
            f"{format_bytes(free)} are free; make room or write somewhere else"
        )
    rows_of.meter.start(num_bytes)
    return num_bytes


def _groups(sizes: Sequence[int]) -> list[list[int]]:
    """Returns the numbers of consecutive items, in groups of at most FILE_BYTES."""
    groups: list[list[int]] = [[]]
    filled = 0
    for number, num_bytes in enumerate(sizes):
        if groups[-1] and filled + num_bytes > FILE_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(number)
        filled += num_bytes
    return groups


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
