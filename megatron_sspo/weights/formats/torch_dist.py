"""The `torch_dist` checkpoint format as files: the index `.metadata` and the small files beside it.

Megatron's `dist_checkpointing` writes it with torch.distributed.checkpoint: whole ("global") tensors in pieces, each
piece a `torch.save` record in a `.distcp` file.
"""

import io
import json
import pickle
import pickletools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.files.reading import is_inside, read_bytes, read_json
from megatron_sspo.processes.forks import exceeded_limit
from megatron_sspo.weights.formats.safetensors_file import has_safetensors

_INDEX = ".metadata"
_CONFIG = "metadata.json"
_COMMON = "common.pt"
_MAX_INDEX_BYTES = 4 * 1024**3  # bytes
_BYTES_PER_SECOND = 1e6  # of an index that a slow machine reads
_NONE_FILE = "nothing.distcp"  # a file of one record, an object that is None
INDEX_FILES = (_INDEX, _CONFIG, _COMMON, _NONE_FILE)
_MEMO_CODES = ("PUT", "BINPUT", "LONG_BINPUT")  # pickle's codes that put a value at a place of the memo
_BACKENDS = {  # the content of metadata.json
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a global tensor, and the record that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str  # relative to the folder
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class GlobalTensor:
    """A tensor of the checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]


def is_torch_dist(path: Path) -> bool:
    """Returns whether a folder looks like a `torch_dist` checkpoint, perhaps an unfinished one or of another format.

    Other programs call a file metadata.json, too, so beside safetensors its content counts.
    """
    if (path / _INDEX).exists():
        return True
    return (path / _CONFIG).exists() and (not has_safetensors(path) or _names_backend(path / _CONFIG))


def _names_backend(file: Path) -> bool:
    try:
        return "sharded_backend" in read_json(file)
    except UserError:
        return False


def read_index(path: Path) -> dict[str, GlobalTensor]:
    """Returns key -> tensor, for all tensors of the checkpoint.

    Raises:
        UserError: it is not such a checkpoint, its index is damaged, or a file lacks what the index places there.
    """
    for name in (_CONFIG, _INDEX):
        if not (path / name).is_file():
            raise UserError(f"{path} has no {name}: it is not a torch_dist checkpoint, or was not finished")
    config = read_json(path / _CONFIG)
    backend = config.get("sharded_backend")
    if backend is None:
        raise UserError(f"{path / _CONFIG} has no sharded_backend: it is damaged, get the checkpoint again")
    if config.get("common_backend") == _BACKENDS["common_backend"] and not (path / _COMMON).is_file():
        raise UserError(f"{path} has no {_COMMON}, without which Megatron does not load it; get the checkpoint again")
    try:
        content = read_bytes(path / _INDEX, at_most=_MAX_INDEX_BYTES)
        _check_numbers(content)
        # a pickle of a few bytes can have keys whose hashes take for ever, or are all equal
        if how := exceeded_limit(lambda: _read(content), "index", more_seconds=len(content) / _BYTES_PER_SECOND):
            raise UserError(f"{path / _INDEX} is damaged (it is not read within {how}); get the checkpoint again")
        found, ends = _read(content)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path / _INDEX} is damaged ({short_repr(error)}); get the checkpoint again") from error
    if backend != _BACKENDS["sharded_backend"]:
        raise UserError(
            f"{path} is a checkpoint of the format {short_repr(backend)}, which is not supported; save it as torch_dist"
        )
    _check_files(path, ends)
    return found


def _read(content: bytes) -> tuple[dict[str, GlobalTensor], dict[str, tuple[int, str]]]:
    """Returns the tensors of an index, by key, and file -> (end of its last record, key of that record).

    A damaged index may raise anything.
    """
    metadata = _Unpickler(io.BytesIO(content)).load()
    storage: dict[Any, Any] = {}
    ends: dict[str, tuple[int, str]] = {}
    for index, info in metadata.storage_data.items():
        _check_place(index.fqn, info.relative_path)
        storage[index.fqn, tuple(index.offset or ())] = info
        end = sum(_sizes((info.offset, info.length)))
        ends[info.relative_path] = max(ends.get(info.relative_path, (0, "")), (end, index.fqn))
    tensors = {
        key: _tensor(key, entry, storage)
        for key, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    return tensors, ends


def _tensor(key: str, entry: TensorStorageMetadata, storage: Mapping[Any, Any]) -> GlobalTensor:
    if not isinstance(key, str) or not key.isprintable() or not isinstance(entry.properties.dtype, torch.dtype):
        raise ValueError(f"a tensor is called {short_repr(key)} and has dtype {short_repr(entry.properties.dtype)}")
    shape = _sizes(entry.size)
    pieces = tuple(_piece(chunk, storage[key, tuple(chunk.offsets)]) for chunk in entry.chunks)
    for piece in pieces:
        ends = [start + size for start, size in zip(piece.offsets, piece.sizes, strict=True)]
        if len(ends) != len(shape) or any(end > size for end, size in zip(ends, shape, strict=True)):
            raise ValueError(f"a piece of {key} {list(shape)} reaches beyond it, to {ends}")
    return GlobalTensor(shape, entry.properties.dtype, pieces)


def _check_place(key: Any, place: Any) -> None:
    if not isinstance(key, str) or not key.isprintable():
        raise ValueError(f"a record is called {short_repr(key)}")
    if not isinstance(place, str) or not is_inside(place):
        raise ValueError(f"{key} is placed in {short_repr(place)}, which is not a file in this folder")


def _piece(chunk: ChunkStorageMetadata, info: Any) -> Piece:
    offset, length = _sizes((info.offset, info.length))
    return Piece(_sizes(chunk.offsets), _sizes(chunk.sizes), info.relative_path, offset, length)


def _sizes(values: Iterable[Any]) -> tuple[int, ...]:
    found = tuple(values)
    if not all(type(value) is int and 0 <= value < 2**63 for value in found):
        raise ValueError(f"{short_repr(found)} are not sizes")
    return found


def _check_files(path: Path, ends: Mapping[str, tuple[int, str]]) -> None:
    for name, (end, key) in ends.items():
        file = path / name
        if not file.is_file():
            raise UserError(f"{file} is missing, which holds {key}; get the checkpoint again")
        if file.stat().st_size < end:
            raise UserError(
                f"{file} is truncated: it has {file.stat().st_size:,} bytes, and {key} ends at {end:,}; "
                "get the checkpoint again"
            )


def _check_numbers(content: bytes) -> None:
    """Checks that no length and no number of the memo in a pickle is above the size of the pickle.

    The unpicklers in C, torch's own included, allocate what such a number says before they read on.

    Raises:
        ValueError: one is, or the pickle is cut off.
    """
    for code, argument, place in pickletools.genops(content):  # which itself refuses a length beyond the end
        if code.name in _MEMO_CODES and argument is not None and argument > len(content):
            raise ValueError(f"it has the number {argument:,} at byte {place:,}, above its own size")


class _Unpickler(pickle.Unpickler):
    """Reads an index. It accepts only the classes that describe tensors and plans, so that no other code runs."""

    _MODULES = (
        "torch.distributed.checkpoint.metadata",
        "torch.distributed.checkpoint.planner",
        "torch.distributed.checkpoint.filesystem",
    )
    _NAMES = (
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        ("builtins", "set"),
    )

    def find_class(self, module: str, name: str) -> Any:
        if name == "getattr" and module in ("builtins", "__builtin__"):  # the latter up to protocol 2
            return _member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in self._NAMES or (module in self._MODULES and "." not in name):
            found = super().find_class(module, name)
            if (module, name) in self._NAMES or _is_description(found):
                return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _member(kind: Any, name: Any) -> Enum:
    """Returns a member of an enumeration. Python 3.11.0 to 3.11.3 writes `getattr(kind, name)` for it."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError(f"it names an attribute of {short_repr(kind)}")
    return kind[name]


def _is_description(found: Any) -> bool:
    """Returns whether a name of these modules is a class of plain data that is defined in one of them."""
    is_data = isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))
    return is_data and found.__module__ in _Unpickler._MODULES


def write_index(path: Path, tensors: dict[str, GlobalTensor], aliases: dict[str, str], none_keys: list[str]) -> None:
    """Writes all files of a checkpoint except for its records.

    Args:
        aliases: further key -> the key in `tensors` of the same tensor.
        none_keys: keys of objects that are None.
    """
    none_record = _saved([None])  # a list, as Megatron writes an object
    (path / _NONE_FILE).write_bytes(none_record)
    none_info = _StorageInfo(_NONE_FILE, 0, len(none_record))
    everything = {**tensors, **{key: tensors[other] for key, other in aliases.items()}}
    metadata = Metadata(
        state_dict_metadata={
            key: TensorStorageMetadata(
                properties=TensorProperties(dtype=tensor.dtype),
                size=torch.Size(tensor.shape),
                chunks=[ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in tensor.pieces],
            )
            for key, tensor in everything.items()
        }
        | {key: BytesStorageMetadata() for key in none_keys},
        storage_data={
            MetadataIndex(key, torch.Size(piece.offsets)): _StorageInfo(piece.file, piece.offset, piece.length)
            for key, tensor in everything.items()
            for piece in tensor.pieces
        }
        | {MetadataIndex(key): none_info for key in none_keys},
    )
    (path / _COMMON).write_bytes(_saved({}))
    (path / _INDEX).write_bytes(pickle.dumps(metadata))
    (path / _CONFIG).write_text(json.dumps(_BACKENDS), encoding="utf-8")


def _saved(content: Any) -> bytes:
    """Returns what torch.save writes. On a full disk, torch itself raises a RuntimeError instead of an OSError."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
