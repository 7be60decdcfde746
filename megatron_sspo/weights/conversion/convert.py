"""Conversion of a Hugging Face folder to a Megatron checkpoint or back, a tensor at a time."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.weights.conversion.progress import check_content, print_left_out, progress_bar
from megatron_sspo.weights.formats import torch_dist
from megatron_sspo.weights.formats.checkpoint_keys import CheckpointKeys
from megatron_sspo.weights.formats.companions import check_text_files, copy_tokenizer_files, write_config
from megatron_sspo.weights.formats.destination import new_folder
from megatron_sspo.weights.formats.hf_folder import HFFolder, file_names, write_folder, write_index
from megatron_sspo.weights.formats.model_folder import ModelFolder, row_ranges
from megatron_sspo.weights.formats.open_folder import check_config_folder, open_folder
from megatron_sspo.weights.formats.safetensors_file import BlockWriter, bytes_of, make_header
from megatron_sspo.weights.formats.torch_dist import NewPiece
from megatron_sspo.weights.fp8 import quantization_config, quantized_names, quantized_stream
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
    destination = Path(os.path.realpath(destination))
    with (
        os_errors_as_user_errors(destination),
        open_folder(source, config_folder) as folder,
        new_folder(destination) as path,
    ):
        direction: Direction = "megatron" if isinstance(folder, HFFolder) else "hf"
        if to is not None and to != direction:
            kinds = {"megatron": "a Hugging Face folder", "hf": "a Megatron checkpoint"}
            raise UserError(f"--to {to} needs {kinds[to]}, and {source} is {kinds[direction]}")
        check_config_folder(config_folder, folder)
        check_text_files(folder.config_folder)
        rows = folder.rows()
        folder.check(rows)
        check_content(folder)
        print_left_out(folder)
        reader = _Reader(folder, dtype, {name: row.dtype for row in rows for name in row.hf if row.dtype is not None})
        num_bytes = sum(prod(shape) * reader.dtypes[name].itemsize for name, shape in _tensors(rows).items())
        title = f"{folder.path} -> {destination}"
        write = _write_megatron if direction == "megatron" else _write_hf
        with progress_bar(title, num_bytes) as reader.advance, ThreadPoolExecutor(NUM_THREADS) as threads:
            num_tensors = write(path, reader, rows, threads)
        copy_tokenizer_files(folder.config_folder, path)
        write_config(folder.config, path, {reader.dtypes[n] for n, shape in _tensors(rows).items() if len(shape) > 1})
    return Summary(direction, num_tensors, num_bytes)


def quantize(source: str | Path, destination: str | Path, *, config_folder: Path | None = None) -> Summary:
    """Writes a model folder of any format as a Hugging Face folder in FP8: see `fp8`.

    Raises:
        UserError: as in `convert`, or the folder is in FP8 already.
    """
    with open_folder(source, config_folder) as folder:
        rows = folder.rows()
        folder.check(rows)
        names = quantized_names(rows)
        num_bytes = 0

        def tensors() -> Iterator[tuple[str, Tensor]]:
            nonlocal num_bytes
            stream = ((name, folder.read(name)) for row in rows for name in row.hf)
            for name, tensor in quantized_stream(stream, names):
                num_bytes += tensor.nbytes
                yield name, tensor

        write_folder(destination, tensors(), source=folder, also={"quantization_config": quantization_config(rows)})
    return Summary("hf", len(_tensors(rows)) + len(names), num_bytes)


class _Reader:
    """Reads rows of a folder's tensors, and casts them unless the dtype is None; tensors of `own` keep their own."""

    advance: Callable[[int], object]  # called with each number of bytes that were read

    def __init__(self, folder: ModelFolder, new_dtype: torch.dtype | None, own: Mapping[str, torch.dtype]) -> None:
        self.folder = folder
        self.dtypes = {name: new_dtype or dtype for name, dtype in folder.dtypes().items()}
        if new_dtype is not None:
            self.dtypes.update(own)

    def read(self, name: str, dim: int, start: int, stop: int) -> Tensor:
        """Returns a slice of a tensor. Raises UserError if a finite value would become infinite."""
        found = self.folder.read(name, dim, start, stop)
        rows = found.to(self.dtypes[name])
        self.advance(rows.nbytes)
        if rows is not found and (rows.isinf() & found.isfinite()).any():
            raise UserError(
                f"{name} of {self.folder.path} has values beyond {torch.finfo(rows.dtype).max:.4g}, the largest of "
                f"{_name(rows.dtype)}; choose another --dtype, or leave it out"
            )
        return rows


def _write_megatron(path: Path, reader: _Reader, rows: Sequence[ParameterMap], threads: ThreadPoolExecutor) -> int:
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
            if reader.dtypes[name] != reader.dtypes[other]:
                raise UserError(
                    f"{other} is {_name(reader.dtypes[other])} and {name} is {_name(reader.dtypes[name])}, but "
                    f"Megatron stores both in one tensor, {location.key}; cast all tensors to one dtype with --dtype"
                )
        dtype, (num_rows, *rest) = reader.dtypes[row.hf[0]], row.shape(1)
        for start, stop in [(0, num_rows)] if row.is_fused else row_ranges(row.shape(1), dtype):
            pieces.append(
                NewPiece(
                    location.key,
                    (*leading[location.key], num_rows, *rest),
                    (*location.index, start, *(0 for _ in rest)),
                    (*(1 for _ in location.index), stop - start, *rest),
                    dtype,
                    partial(row.rows, reader.read, start, stop),
                )
            )
    files = [[pieces[i] for i in group] for group in _groups([piece.num_bytes for piece in pieces])]
    torch_dist.write(path, files, aliases=aliases, none_keys=keys.extra_state_keys(), threads=threads)
    return len(rows)


def _write_hf(path: Path, reader: _Reader, rows: Sequence[ParameterMap], threads: ThreadPoolExecutor) -> int:
    """Writes safetensors files, with the tensors in the order of the table."""
    shapes = _tensors(rows)
    names = list(shapes)
    sizes = [prod(shapes[name]) * reader.dtypes[name].itemsize for name in names]
    files = [[names[i] for i in group] for group in _groups(sizes)]

    def write(file_name: str, names: Sequence[str]) -> None:
        with BlockWriter(path / file_name) as file:
            file.write(make_header({name: (shapes[name], reader.dtypes[name]) for name in names}))
            for name in names:
                for start, stop in row_ranges(shapes[name], reader.dtypes[name]):
                    file.write(bytes_of(reader.read(name, 0, start, stop)))

    list(threads.map(write, file_names(len(files)), files))
    write_index(path, files, sum(sizes))
    return len(names)


def _tensors(rows: Sequence[ParameterMap]) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of the Hugging Face tensors, in the order of the table."""
    return {name: shape for row in rows for name, shape in zip(row.hf, row.hf_shapes, strict=True)}


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
