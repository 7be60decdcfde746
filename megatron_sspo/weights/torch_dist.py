"""The `torch_dist` checkpoint format as files: its index `.metadata`, its small companions, and the names in it.

Megatron's `dist_checkpointing` writes it by torch.distributed.checkpoint: whole ("global") tensors in pieces, each
piece a `torch.save` record somewhere in a `.distcp` file. Layers and experts are leading dimensions of one tensor.
"""

import io
import json
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

from megatron_sspo.errors import UserError

INDEX = ".metadata"
CONFIG = "metadata.json"
COMMON = "common.pt"
_NOTHING = "nothing.distcp"  # one record, of an object that is None
_CONFIG = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
# Where a layer's norm of its MLP is: Transformer Engine fuses it into a dense MLP, and keeps it apart before experts;
# Megatron's local specification gives both the first name.
_FUSED_NORM, _NORM = "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"


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
    """Whether a folder looks like such a checkpoint."""
    return (path / INDEX).exists() or (path / CONFIG).exists()


def read_index(path: Path) -> dict[str, GlobalTensor]:
    """Key -> tensor, of everything in the checkpoint that is a tensor.

    Raises:
        UserError: it is no such checkpoint, its index is damaged, or a file lacks what the index places there.
    """
    for name in (CONFIG, INDEX):
        if not (path / name).is_file():
            raise UserError(f"{path} has no {name}: it is no torch_dist checkpoint, or was not finished")
    try:
        backend = json.loads((path / CONFIG).read_text())["sharded_backend"]
        metadata = _Unpickler(io.BytesIO((path / INDEX).read_bytes())).load()
        places: dict[Any, Any] = {
            (index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()
        }
        found = {
            key: GlobalTensor(
                tuple(entry.size),
                entry.properties.dtype,
                tuple(_piece(chunk, places[key, tuple(chunk.offsets)]) for chunk in entry.chunks),
            )
            for key, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from error
    except Exception as error:  # whatever a damaged pickle comes to
        raise UserError(f"{path / INDEX} is damaged ({error!r}); get the checkpoint again") from error
    if backend != _CONFIG["sharded_backend"]:
        raise UserError(f"{path} is a {backend} checkpoint, which is not supported; save it as torch_dist")
    _check_files(path, found)
    return found


def _piece(chunk: ChunkStorageMetadata, info: Any) -> Piece:
    return Piece(tuple(chunk.offsets), tuple(chunk.sizes), info.relative_path, info.offset, info.length)


def _check_files(path: Path, tensors: Mapping[str, GlobalTensor]) -> None:
    ends: dict[str, tuple[int, str]] = {}  # file -> (where its last record ends, whose that is)
    for key, tensor in tensors.items():
        for piece in tensor.pieces:
            ends[piece.file] = max(ends.get(piece.file, (0, "")), (piece.offset + piece.length, key))
    for name, (end, key) in ends.items():
        file = path / name
        if not file.is_file():
            raise UserError(f"{file} is missing, which holds {key}; get the checkpoint again")
        if file.stat().st_size < end:
            raise UserError(
                f"{file} is truncated: it has {file.stat().st_size:,} bytes, and {key} ends at {end:,}; "
                "get the checkpoint again"
            )


class _Unpickler(pickle.Unpickler):
    """Reads an index. It may name the classes that describe tensors and plans, and nothing that acts."""

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
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in self._NAMES or (module in self._MODULES and "." not in name):
            found = super().find_class(module, name)
            if (module, name) in self._NAMES or isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def write_index(path: Path, tensors: Mapping[str, GlobalTensor], same: Mapping[str, str], empty: Iterable[str]) -> None:
    """Writes all of a checkpoint but its records.

    Args:
        same: further keys, each for a tensor that the checkpoint has under another one.
        empty: keys of objects that are None.
    """
    nothing = io.BytesIO()
    torch.save([None], nothing)  # a list, as Megatron writes an object
    (path / _NOTHING).write_bytes(nothing.getvalue())
    place_of_nothing = _StorageInfo(_NOTHING, 0, len(nothing.getvalue()))
    everything = {**tensors, **{key: tensors[other] for key, other in same.items()}}
    metadata = Metadata(
        state_dict_metadata={
            key: TensorStorageMetadata(
                properties=TensorProperties(dtype=tensor.dtype),
                size=torch.Size(tensor.shape),
                chunks=[ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in tensor.pieces],
            )
            for key, tensor in everything.items()
        }
        | {key: BytesStorageMetadata() for key in empty},
        storage_data={
            MetadataIndex(key, torch.Size(piece.offsets)): _StorageInfo(piece.file, piece.offset, piece.length)
            for key, tensor in everything.items()
            for piece in tensor.pieces
        }
        | {MetadataIndex(key): place_of_nothing for key in empty},
    )
    torch.save({}, path / COMMON)
    (path / INDEX).write_bytes(pickle.dumps(metadata))
    (path / CONFIG).write_text(json.dumps(_CONFIG))


# ------------------------------------------------------------------ names of rows <-> keys of the checkpoint


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row's parameter is: a key, and the index into the leading dimensions of its tensor."""

    key: str
    index: tuple[int, ...]


class Places:
    """For each row of a table, the places that Megatron's layer specifications give it: the one to write first.

    Args:
        names: of all rows of the table.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._has_experts = {name.split(".mlp.")[0] for name in self._names if ".mlp.experts." in name}

    def of(self, name: str) -> list[Place]:
        """The places of a row, by its name."""
        match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
        if match is None:
            return [Place(name, ())]
        layer = int(match[1])
        expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(.+)", match[2])
        if expert is not None:
            rest, index = f"mlp.experts.experts.{expert[2]}", (int(expert[1]),)
            return _in_layer(layer, rest, index)
        if match[2] == "input_layernorm.weight":
            return _in_layer(layer, "self_attention.linear_qkv.layer_norm_weight")
        if match[2] == _NORM:
            names = (_NORM, _FUSED_NORM) if f"decoder.layers.{layer}" in self._has_experts else (_FUSED_NORM,)
            return [place for rest in names for place in _in_layer(layer, rest)]
        return _in_layer(layer, match[2])

    def leading_sizes(self) -> dict[str, tuple[int, ...]]:
        """Key -> sizes of its tensor's leading dimensions."""
        sizes: dict[str, list[int]] = {}
        for name in self._names:
            for place in self.of(name):
                known = sizes.setdefault(place.key, [0] * len(place.index))
                known[:] = [max(size, number + 1) for size, number in zip(known, place.index, strict=True)]
        return {key: tuple(found) for key, found in sizes.items()}

    def extra_states(self) -> list[str]:
        """The keys of what Megatron's modules keep besides parameters: scales of FP8, of which other dtypes have none.

        Megatron asks for them whatever the dtype, and does not load a checkpoint that lacks them.
        """
        leading = self.leading_sizes()
        places = {(place.key, place.index) for name in self._names for place in self.of(name) if _is_stacked(place)}
        attention = "decoder.layers.self_attention"
        places |= {(f"{attention}.core_attention.weight", i) for key, i in places if key.startswith(attention)}
        leading[f"{attention}.core_attention.weight"] = leading[f"{attention}.linear_qkv.weight"]
        found = []
        for key, index in sorted(places):
            module, _, parameter = key.rpartition(".")
            if parameter == "weight":
                number, count = (".".join(map(str, values)) for values in (index or (0,), leading[key] or (1,)))
                found.append(f"{module}._extra_state/shard_{number}_{count}")
        return found


def _is_stacked(place: Place) -> bool:
    return re.match(r"decoder\.layers\.\d", place.key) is None


def _in_layer(layer: int, rest: str, index: Sequence[int] = ()) -> list[Place]:
    """Stacked over the layers, as Megatron writes them where all are alike; and each layer with a key of its own."""
    return [Place(f"decoder.layers.{rest}", (layer, *index)), Place(f"decoder.layers.{layer}.{rest}", tuple(index))]
