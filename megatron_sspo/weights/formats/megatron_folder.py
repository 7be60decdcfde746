"""A Megatron `torch_dist` checkpoint as a model folder: its parameters under Hugging Face names, without a model."""

import math
import re
import threading
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import Manifest
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.family import architecture, load_family, size
from megatron_sspo.weights.formats.checkpoint_keys import CheckpointKeys, Location
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.run_checkpoint import part_to_check, read_run_manifest
from megatron_sspo.weights.formats.torch_dist import GlobalTensor, Piece, read_index
from megatron_sspo.weights.table import PaddedVocab, ParameterMap, list_mismatches

# The keys of a checkpoint that are not of the model. The optimizer keys are Megatron-Core's.
_NON_MODEL_KEY = re.compile(r"(chained_\d+\.)?optimizer\.|rng_state|rerun_state_machine_state")
# A vocabulary is padded to a multiple of the tensor-parallel size (in Megatron-LM times 128), or of a power of two.
_MAX_TENSOR_PARALLEL, _DIVISIBLE_BY = 64, 128
_PADDED_TO = {
    *range(1, _MAX_TENSOR_PARALLEL + 1),
    *(_DIVISIBLE_BY * size for size in range(1, _MAX_TENSOR_PARALLEL + 1)),
    *(1 << power for power in range((_MAX_TENSOR_PARALLEL * _DIVISIBLE_BY).bit_length())),
}
_KEPT_KEYS = 2  # of records in memory: an expert's two matrices alternate, and a record may hold several experts


class _Records(threading.local):
    """The records that a thread has read for the last parameter of each of the last keys: key -> offsets -> tensor."""

    def __init__(self) -> None:
        self.by_key: dict[str, dict[tuple[int, ...], Tensor]] = {}


class MegatronFolder(ModelFolder):
    """A checkpoint of any layout, written by the converter, the trainer, Megatron-LM or torch.

    Its optimizer state and random states are ignored.

    Args:
        path: the folder with `.metadata`.
        config_folder: the folder with config.json and tokenizer; None means `path`.

    Raises:
        UserError: the checkpoint is damaged, or does not match the weight table of its family exactly.
    """

    def __init__(self, path: str | Path, config_folder: Path | None = None) -> None:
        self.path = Path(path)
        self.config_folder = config_folder or self.path
        if not (self.config_folder / "config.json").is_file():
            raise UserError(
                f"{self.config_folder} has no config.json, and a torch_dist checkpoint has no model configuration; "
                "name the Hugging Face folder of the model with --config"
            )
        self.config: dict[str, Any] = read_json(self.config_folder / "config.json")
        family = load_family(self.config, self.config_folder)
        self._check_own_config()
        self._run_manifest = read_run_manifest(self.path)
        self._tensors = read_index(self.path)
        # the vocabulary without padding: any further rows of the checkpoint are padding
        rows = family.rows(self.config, size(self.config, "vocab_size"))
        self._locations = self._locate_parameters(rows)
        self._row_of = {name: row for row in rows for name in row.hf}
        self._shapes = {n: shape for row in rows for n, shape in zip(row.hf, row.hf_shapes, strict=True)}
        self._dtypes = {name: self._tensor(row).dtype for name, row in self._row_of.items()}
        self.num_padding_rows = max(
            self._tensor(row).shape[0] - row.shape(1)[0] for row in rows if isinstance(row.sharding, PaddedVocab)
        )
        self._pieces = self._place_pieces()
        self._records = _Records()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def dtypes(self) -> dict[str, torch.dtype]:
        return self._dtypes

    def weight_files(self) -> list[Path]:
        return sorted({piece.file for pieces in self._pieces.values() for piece in pieces})

    def fill(self, rows: Tensor, name: str, start: int) -> None:
        row, stop = self._row_of[name], start + len(rows)
        at = 0  # in the parameter
        for block in row.row_blocks():
            first, last = max(block.start, start), min(block.stop, stop)
            if block.source == row.hf.index(name) and first < last:
                self._copy(self._locations[row.name], at + first - block.start, rows[first - start : last - start])
            at += block.size

    def close(self) -> None:
        self._records = _Records()

    def manifest_to_check(self) -> tuple[Path, Manifest] | None:
        if self._run_manifest is None:
            return None
        files = {file.name for file in self.weight_files()}
        return self.path.absolute().parent, part_to_check(self._run_manifest, files)

    def _tensor(self, row: ParameterMap) -> GlobalTensor:
        return self._tensors[self._locations[row.name].key]

    def _copy(self, location: Location, start: int, into: Tensor) -> None:
        """Copies the rows of a parameter from `start` on, as many as `into` has."""
        depth, dtype = len(location.index), self._tensors[location.key].dtype
        known = self._known_records(location)
        for piece in self._pieces[location]:
            offsets, sizes = piece.offsets[depth:], piece.sizes[depth:]
            first, last = max(start, offsets[0]), min(start + len(into), offsets[0] + sizes[0])
            if first >= last:
                continue
            if piece.offsets not in known:
                known[piece.offsets] = piece.read(dtype)
            block = known[piece.offsets][tuple(i - o for i, o in zip(location.index, piece.offsets, strict=False))]
            target = into[first - start : last - start]
            for dim in range(1, len(sizes)):
                target = target.narrow(dim, offsets[dim], sizes[dim])
            target.copy_(block[first - offsets[0] : last - offsets[0]])
            if not location.index and last == offsets[0] + sizes[0]:  # of a vocabulary, which is read in order
                del known[piece.offsets]

    def _known_records(self, location: Location) -> dict[tuple[int, ...], Tensor]:
        """Returns this thread's records of a parameter, by offsets, and forgets others."""
        by_key = self._records.by_key
        offsets = {piece.offsets for piece in self._pieces[location]}
        known = {at: record for at, record in by_key.pop(location.key, {}).items() if at in offsets}
        by_key[location.key] = known
        while len(by_key) > _KEPT_KEYS:
            del by_key[next(iter(by_key))]
        return known

    def _check_own_config(self) -> None:
        """Checks that a configuration from elsewhere makes the model that the checkpoint's own config.json makes."""
        own = self.path / "config.json"
        if not own.is_file() or "model_type" not in (config := read_json(own)):  # another program's file
            return
        expected, given = architecture(config, self.path), architecture(self.config, self.config_folder)
        for name in sorted({*expected, *given}):
            if given.get(name) != expected.get(name):
                raise UserError(
                    f"{self.config_folder / 'config.json'} gives Megatron {name} {given.get(name)!r}, and {own} "
                    f"{expected.get(name)!r}; leave --config out, or remove {own} if it is not that of these weights"
                )

    def _place_pieces(self) -> dict[Location, list[Piece]]:
        """Returns the pieces of each parameter, whose layer and expert are an index into the tensors of a key."""
        found: dict[Location, list[Piece]] = {location: [] for location in self._locations.values()}
        for key, depth in {location.key: len(location.index) for location in found}.items():
            for piece in self._tensors[key].pieces:
                leading = zip(piece.offsets[:depth], piece.sizes, strict=False)
                for index in product(*(range(start, start + count) for start, count in leading)):
                    found[Location(key, index)].append(piece)
        for name, location in self._locations.items():
            depth, shape = len(location.index), self._tensors[location.key].shape
            if sum(math.prod(piece.sizes[depth:]) for piece in found[location]) != math.prod(shape[depth:]):
                raise UserError(f"{self.path} lacks parts of {name} ({location.key} {list(location.index)})")
        return found

    def _locate_parameters(self, rows: Sequence[ParameterMap]) -> dict[str, Location]:
        """Returns the location of every row. Names, shapes and dtypes are checked both ways before a tensor is read."""
        keys = CheckpointKeys(row.name for row in rows)
        leading = keys.leading_sizes()
        found: dict[str, Location] = {}
        known: set[str] = set()
        missing, wrong = [], {}
        for row in rows:
            present = [location for location in keys.locations(row.name) if location.key in self._tensors]
            known |= {location.key for location in present}
            if not present:
                missing.append(f"{row.name} ({keys.locations(row.name)[0].key})")
                continue
            location = found[row.name] = present[0]
            tensors = [self._tensors[other.key] for other in present]
            if len(tensors) > 1 and any(_places(tensor) != _places(tensors[0]) for tensor in tensors):
                wrong[location.key] = f"{row.name} is stored twice, as {' and '.join(other.key for other in present)}"
            elif not _fits(row, leading[location.key], tensors[0].shape):
                wrong[location.key] = (
                    f"{location.key} {list(tensors[0].shape)} instead of {[*leading[location.key], *row.shape(1)]}"
                )
            elif not tensors[0].dtype.is_floating_point:
                wrong[location.key] = f"{location.key} of {tensors[0].dtype}"
        unknown = [key for key in self._tensors if key not in known and not _NON_MODEL_KEY.match(key)]
        mismatches = {
            "missing": missing,
            "without a row in the weight table": unknown,
            "of the wrong shape or dtype": list(wrong.values()),
        }
        if listed := list_mismatches(mismatches):
            raise UserError(
                f"{self.path} does not hold the parameters of its model family: {listed}; "
                f"check that {self.config_folder / 'config.json'} belongs to this checkpoint"
            )
        return found


def _places(tensor: GlobalTensor) -> set[tuple[Path, int]]:
    return {(piece.file, piece.offset) for piece in tensor.pieces}


def _fits(row: ParameterMap, leading: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    expected = (*leading, *row.shape(1))
    if isinstance(row.sharding, PaddedVocab) and len(shape) == len(expected):
        return shape[1:] == expected[1:] and _may_be_padded(expected[0], shape[0])
    return shape == expected


def _may_be_padded(vocab_size: int, num_rows: int) -> bool:
    """Returns whether a vocabulary may have this number of rows with its padding."""
    return any(num_rows == -(-vocab_size // multiple) * multiple for multiple in _PADDED_TO)
