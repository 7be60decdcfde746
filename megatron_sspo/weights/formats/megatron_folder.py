"""A Megatron `torch_dist` checkpoint as a model folder: its parameters under Hugging Face names, without a model."""

import math
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import NAME, check_sizes, read_manifest
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.formats.checkpoint_keys import CheckpointKeys, Location
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.torch_dist import GlobalTensor, Piece, read_index
from megatron_sspo.weights.sharding import PaddedVocab
from megatron_sspo.weights.table import ParameterMap, list_mismatches

# The keys of a checkpoint that are not of the model. The optimizer keys are Megatron-Core's.
_NON_MODEL_KEY = re.compile(r"(chained_\d+\.)?optimizer\.|rng_state|rerun_state_machine_state|reference\.")
# A vocabulary is padded to a multiple of the tensor-parallel size, of 128 times that size, or of a power of two.
_PADDED_TO = {size * by for size in range(1, 65) for by in (1, 128)}
_TRAINER = "trainer"  # the folder of the tensors in a run's checkpoint
_KEPT_KEYS = 2  # of records in memory: an expert's two matrices alternate, and a record may hold several experts


class _Records(threading.local):
    """The records that a thread has read for the last parameter of each of the last keys: key -> offsets -> tensor."""

    def __init__(self) -> None:
        self.by_key: dict[str, dict[tuple[int, ...], Tensor]] = {}


class MegatronFolder(ModelFolder):
    """A checkpoint of any layout, written by the converter, the trainer, Megatron-LM or torch.

    Its optimizer state, random states and reference policy are ignored.

    Args:
        path: the folder with `.metadata`.
        config_folder: the folder with config.json and tokenizer; None means `path`.
        rows: the table of its tensors; None means the weight table of its family.

    Raises:
        UserError: the checkpoint is damaged, or does not match the table exactly.
    """

    def __init__(
        self, path: str | Path, config_folder: Path | None = None, rows: Sequence[ParameterMap] | None = None
    ) -> None:
        self.path = Path(path)
        own = self.path / "config.json"  # other programs write files of this name, too
        has_own = own.is_file() and "model_type" in read_json(own)
        self.config_folder = self.path if has_own or config_folder is None else config_folder
        if not (self.config_folder / "config.json").is_file():
            raise UserError(
                f"{self.config_folder} has no config.json, and a torch_dist checkpoint has no model configuration; "
                "name the Hugging Face folder of the model with --config"
            )
        self.config: dict[str, Any] = read_json(self.config_folder / "config.json")
        if rows is None:
            rows = self.rows()  # the vocabulary without padding: any further rows of the checkpoint are padding
        run = self.path.absolute().parent
        if self.path.absolute().name == _TRAINER and (run / NAME).exists():
            written = read_manifest(run)
            files = {name: entry for name, entry in written.files.items() if name.startswith(f"{_TRAINER}/")}
            self.run_manifest = run, replace(written, files=files)
            check_sizes(*self.run_manifest, folder=f"{_TRAINER}/")
        self._tensors = read_index(self.path)
        self._locations = self._locate_parameters(rows)
        self._rows_of: dict[str, list[ParameterMap]] = {}
        for row in rows:
            for name in row.hf:
                self._rows_of.setdefault(name, []).append(row)
        self._shapes = {n: shape for row in rows for n, shape in zip(row.hf, row.hf_shapes, strict=True)}
        self._dtypes = {name: self._tensor(found[0]).dtype for name, found in self._rows_of.items()}
        vocabularies = (row for row in rows if isinstance(row.sharding, PaddedVocab))
        self.num_padding_rows = max((self._tensor(row).shape[0] - row.shape(1)[0] for row in vocabularies), default=0)
        self._pieces = self._place_pieces()
        self._records = _Records()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def dtypes(self) -> dict[str, torch.dtype]:
        return self._dtypes

    def weight_files(self) -> list[Path]:
        return sorted({piece.file for pieces in self._pieces.values() for piece in pieces})

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        rows = torch.empty((stop - start, *self._shapes[name][1:]), dtype=self._dtypes[name])
        row, *others = self._rows_of[name]
        if row.is_fused:
            for number, each in enumerate([row, *others][start:stop]):
                whole = torch.empty(each.shape(1), dtype=rows.dtype)
                self._copy(self._locations[each.name], 0, whole)
                rows[number] = each.to_hf([whole])[name][0]
            return rows
        at = 0  # in the parameter
        for block in row.row_blocks():
            first, last = max(block.start, start), min(block.stop, stop)
            if block.source == row.hf.index(name) and first < last:
                self._copy(self._locations[row.name], at + first - block.start, rows[first - start : last - start])
            at += block.size
        return rows

    def close(self) -> None:
        self._records = _Records()

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
        """Returns the location of every row. Names and shapes are checked both ways before a tensor is read."""
        keys = CheckpointKeys(row.name for row in rows)
        leading = keys.leading_sizes()
        found: dict[str, Location] = {}
        expected: dict[str, Sequence[int]] = {}
        copies: dict[str, Sequence[int]] = {}
        stored = {key: tensor.shape for key, tensor in self._tensors.items() if not _NON_MODEL_KEY.match(key)}
        for row in rows:
            locations = keys.locations(row.name)
            first, *others = [location for location in locations if location.key in stored] or locations[:1]
            shape = (*leading[first.key], *row.shape(1))
            if isinstance(row.sharding, PaddedVocab) and _is_padded(stored.get(first.key, ()), shape):
                shape = stored[first.key]
            found[row.name] = first
            expected[first.key] = shape
            copies |= {other.key: (*leading[other.key], *row.shape(1)) for other in others}
        if listed := list_mismatches(expected, stored, copies):
            raise UserError(
                f"{self.path} does not hold the parameters of its model family: {listed}; "
                f"check that {self.config_folder / 'config.json'} belongs to this checkpoint"
            )
        return found


def _is_padded(stored: Sequence[int], shape: Sequence[int]) -> bool:
    """Returns whether a stored vocabulary is one of this shape with padding."""
    return stored in {(-(-shape[0] // multiple) * multiple, *shape[1:]) for multiple in _PADDED_TO}
