"""The `torch_dist` checkpoint format: whole ("global") tensors in pieces, each a `torch.save` record in a file.

torch.distributed.checkpoint writes it, Megatron's `dist_checkpointing` by it and with two small files of its own.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.weights.formats.safetensors_file import BlockWriter

_INDEX, _CONFIG, _COMMON = ".metadata", "metadata.json", "common.pt"
_AGAIN = "get the checkpoint again"
_BACKENDS = {  # the content of metadata.json
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a global tensor, and the record that holds it."""

    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: Path
    offset: int
    length: int

    def read(self, dtype: torch.dtype) -> Tensor:
        """Returns the block, after a comparison with the CRC-32 beside it, which torch does not make.

        Raises UserError if the record is damaged, or is not that of such a tensor.
        """
        what = f"{self.key} {list(self.offsets)}"
        try:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                record = io.BytesIO(file.read(self.length))
            with zipfile.ZipFile(record) as archive:
                if (damaged := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"the CRC-32 of {damaged} is not that of its bytes")
            record.seek(0)
            found = torch.load(record, map_location="cpu", weights_only=True)
            if (found.dtype, found.shape) != (dtype, self.sizes):
                raise ValueError(f"it is not the {dtype} {list(self.sizes)} of {_INDEX}")
            return found
        except Exception as error:  # a damaged archive or pickle may raise anything
            raise UserError(f"{what} in {self.file} is damaged ({short_repr(error)}); {_AGAIN}") from error


@dataclass(frozen=True, slots=True)
class GlobalTensor:
    """A tensor of the checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]


def is_torch_dist(path: Path) -> bool:
    """Returns whether a folder is a `torch_dist` checkpoint, perhaps an unfinished one or of another format.

    Other programs call a file metadata.json, too, beside safetensors.
    """
    return (path / _INDEX).exists() or ((path / _CONFIG).exists() and not any(path.glob("*.safetensors*")))


def read_index(path: Path) -> dict[str, GlobalTensor]:
    """Returns key -> tensor, for all tensors of the checkpoint.

    Raises UserError if its index is missing or damaged, or a file lacks what the index places there.
    """
    try:
        metadata = FileSystemReader(path).read_metadata()
        places: Mapping[MetadataIndex, Any] = metadata.storage_data
        tensors = {
            key: GlobalTensor(
                tuple(entry.size),
                entry.properties.dtype,
                tuple(_piece(path, key, chunk, places) for chunk in entry.chunks),
            )
            for key, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path / _INDEX} is missing or damaged ({short_repr(error)}); {_AGAIN}") from error
    ends: dict[Path, int] = {}  # as files do not after an interrupted copy
    for piece in (piece for tensor in tensors.values() for piece in tensor.pieces):
        ends[piece.file] = max(ends.get(piece.file, 0), piece.offset + piece.length)
    for file, end in ends.items():
        if not file.is_file() or file.stat().st_size < end:
            raise UserError(f"{file} is missing or truncated: the checkpoint has {end:,} bytes there; {_AGAIN}")
    return tensors


def _piece(path: Path, key: str, chunk: ChunkStorageMetadata, places: Mapping[MetadataIndex, Any]) -> Piece:
    place = places[MetadataIndex(key, chunk.offsets)]
    return Piece(key, tuple(chunk.offsets), tuple(chunk.sizes), path / place.relative_path, place.offset, place.length)


@dataclass(frozen=True, slots=True)
class NewPiece:
    """A block of a global tensor that is to be written; `make` returns it."""

    key: str
    shape: tuple[int, ...]  # of the global tensor
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.sizes).numel() * self.dtype.itemsize

    @property
    def item(self) -> WriteItem:
        """The piece as torch plans it."""
        chunk = ChunkStorageMetadata(torch.Size(self.offsets), torch.Size(self.sizes))
        data = TensorWriteData(chunk, TensorProperties(dtype=self.dtype), torch.Size(self.shape))
        return WriteItem(MetadataIndex(self.key, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


class _FileSystem(FileSystem):
    """Opens files for torch's writer; a record is handed to the system in blocks."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike, mode: str) -> Iterator[Any]:
        with BlockWriter(path) as file:
            yield file


class _Planner(DefaultSavePlanner):
    """Makes each tensor when torch writes it."""

    def __init__(self, pieces: Mapping[MetadataIndex, NewPiece]) -> None:
        super().__init__()
        self._pieces = pieces

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        piece = self._pieces[write_item.index]
        return piece.make().view(piece.sizes)


def write(
    path: Path,
    files: Sequence[Sequence[NewPiece]],
    *,
    aliases: Mapping[str, str],
    none_keys: Sequence[str],
    threads: Executor,
) -> None:
    """Writes a checkpoint that Megatron loads, into an existing folder.

    Args:
        files: the pieces of each file. A thread writes one file at a time, and has one piece in memory.
        aliases: further key -> the key of the same tensor.
        none_keys: keys of objects that are None.
    """
    none_file = f"__{len(files)}_0.distcp"
    plans, metadata = create_default_global_save_plan([SavePlan([piece.item for piece in f]) for f in files])
    writer = FileSystemWriter(path, per_thread_copy_ahead=0)  # as with a GPU, where it is a stream of copies from it
    writer.fs = _FileSystem()
    planner = _Planner({piece.item.index: piece for file in files for piece in file})
    plans = writer.prepare_global_plan(plans)
    results = [
        result
        for written in threads.map(lambda plan: writer.write_data(plan, planner).wait(), plans)
        for result in written
    ]
    results += [
        replace(result, index=MetadataIndex(alias, result.index.offset))
        for alias, key in aliases.items()
        for result in results
        if result.index.fqn == key
    ]
    torch.save([None], path / none_file)  # a list, as Megatron writes an object
    none_place = replace(
        results[0].storage_data, relative_path=none_file, offset=0, length=(path / none_file).stat().st_size
    )
    results += [replace(results[0], index=MetadataIndex(key), storage_data=none_place) for key in none_keys]
    tensors = metadata.state_dict_metadata
    tensors.update({alias: tensors[key] for alias, key in aliases.items()})
    tensors.update({key: BytesStorageMetadata() for key in none_keys})
    writer.finish(metadata, [results])
    torch.save({}, path / _COMMON)
    (path / _CONFIG).write_text(json.dumps(_BACKENDS), encoding="utf-8")
