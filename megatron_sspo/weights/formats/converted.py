"""The manifest that a conversion leaves in a checkpoint: which parts it wrote, with the checksum of each."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.formats.torch_dist import GlobalTensor

MANIFEST = "manifest.json"

PieceName = tuple[str, tuple[int, ...]]
"""(key of the tensor, offsets of the piece in it)."""


def is_converted(folder: Path) -> bool:
    """Returns whether a conversion wrote the checkpoint, and not a trainer."""
    return os.path.lexists(folder / MANIFEST)


def read_checksums(folder: Path, tensors: Mapping[str, GlobalTensor]) -> dict[PieceName, int]:
    """Returns the CRC-32 of each piece of a checkpoint that a conversion wrote; none for another checkpoint.

    Args:
        tensors: the model's tensors in the checkpoint, by key.

    Raises:
        UserError: the manifest is damaged, or belongs to another checkpoint.
    """
    path = folder / MANIFEST
    if not is_converted(folder):
        return {}
    content = read_json(path, remedy="get the checkpoint again")
    try:
        listed = {_name(entry): _place(entry) for entry in content["tensors"]}
        checksums = {_name(entry): int(entry["crc32"], 16) for entry in content["tensors"]}
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error!r}); get the checkpoint again") from error
    found = {
        (key, piece.offsets): (piece.sizes, str(tensor.dtype).removeprefix("torch."), piece.file)
        for key, tensor in tensors.items()
        for piece in tensor.pieces
    }
    for name in sorted({*listed, *found}):
        if listed.get(name) != found.get(name):
            raise UserError(
                f"{path} and the file .metadata beside it disagree on {name[0]} at {list(name[1])}; get the checkpoint "
                "again"
            )
    return checksums


def _name(entry: Mapping[str, Any]) -> PieceName:
    return str(entry["name"]), tuple(map(int, entry["offsets"]))


def _place(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry["shape"]), entry["dtype"], entry["file"]
