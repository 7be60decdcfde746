"""A Megatron `torch_dist` checkpoint as a model folder: its parameters under Hugging Face names, without a model."""

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import Manifest
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.family import architecture, check_counts, load_family, size
from megatron_sspo.weights.formats.checkpoint_keys import CheckpointKeys, Location
from megatron_sspo.weights.formats.converted import PieceName, is_converted, read_checksums
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.run_checkpoint import part_to_check, read_run_manifest
from megatron_sspo.weights.formats.stored import Files, Record, StoredPart, StoredTensor
from megatron_sspo.weights.formats.torch_dist import GlobalTensor, read_index
from megatron_sspo.weights.table import PaddedVocab, ParameterMap, list_mismatches

# The keys of a checkpoint that are not of the model. The optimizer keys are Megatron-Core's.
_NON_MODEL_KEY = re.compile(r"(chained_\d+\.)?optimizer\.|rng_state|rerun_state_machine_state")
_ZIP_BYTES = 98  # of a zip archive of one file besides its name and content; a record is such an archive
# A vocabulary is padded to a multiple of the tensor-parallel size (in Megatron-LM times 128), or of a power of two.
_MAX_TENSOR_PARALLEL, _DIVISIBLE_BY = 64, 128
_PADDED_TO = {
    *range(1, _MAX_TENSOR_PARALLEL + 1),
    *(_DIVISIBLE_BY * size for size in range(1, _MAX_TENSOR_PARALLEL + 1)),
    *(1 << power for power in range((_MAX_TENSOR_PARALLEL * _DIVISIBLE_BY).bit_length())),
}


class MegatronFolder(ModelFolder):
    """A checkpoint of any layout, written by the converter, the trainer or Megatron-LM.

    Its optimizer state and random states are ignored.

    Args:
        path: the folder with `.metadata`.
        config_folder: the folder with config.json and tokenizer; None means `path`.

    Raises:
        UserError: the checkpoint is damaged, or does not match the weight table of its family exactly.
    """

    def __init__(self, path: str | Path, config_folder: Path | None = None) -> None:
        super().__init__()
        self.files = Files(check=True)
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
        check_counts(self.config, *_count_bounds(self._tensors), self.path)
        # the vocabulary without padding: any further rows of the checkpoint are padding
        self._rows = family.rows(self.config, size(self.config, "vocab_size"))
        self._locations = self._locate_parameters()
        self._checksums = read_checksums(self.path, {key: tensor for key, _, tensor in self._used_tensors()})

    @cached_property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Hugging Face name -> its location in files."""
        found: dict[str, StoredTensor] = {}
        pieces = {
            key: _pieces_by_index(self.path, key, tensor, depth, self._checksums)
            for key, depth, tensor in self._used_tensors()
        }
        for row in self._rows:
            location = self._locations[row.name]
            tensor = self._tensors[location.key]
            parts = pieces[location.key].get(location.index, ())
            whole = StoredTensor(row.name, tensor.shape[len(location.index) :], tensor.dtype, tuple(parts))
            if sum(part.num_rows * part.width for part in whole.parts) != whole.num_bytes or _overlap(whole.parts):
                raise UserError(f"{self.path} lacks parts of {row.name} ({location.key} {list(location.index)})")
            for name, shape, parts in zip(row.hf, row.hf_shapes, _split(row, whole), strict=True):
                found[name] = StoredTensor(name, shape, tensor.dtype, tuple(parts))
        return found

    @property
    def num_padding_rows(self) -> int:
        vocabularies = [row for row in self._rows if isinstance(row.sharding, PaddedVocab)]
        return max(self._tensors[self._locations[row.name].key].shape[0] - row.shape(1)[0] for row in vocabularies)

    def manifest_to_check(self) -> tuple[Path, Manifest] | None:
        if self._run_manifest is None:
            return None
        files = {piece.file for _, _, tensor in self._used_tensors() for piece in tensor.pieces}
        return self.path.absolute().parent, part_to_check(self._run_manifest, files)

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

    def _used_tensors(self) -> Iterator[tuple[str, int, GlobalTensor]]:
        for location in {location.key: location for location in self._locations.values()}.values():
            yield location.key, len(location.index), self._tensors[location.key]

    def _locate_parameters(self) -> dict[str, Location]:
        """Returns the location of every row. Names, shapes and dtypes are checked both ways before a tensor is read."""
        keys = CheckpointKeys(row.name for row in self._rows)
        leading = keys.leading_sizes()
        found: dict[str, Location] = {}
        known: set[str] = set()
        converted = is_converted(self.path)  # such a checkpoint has no padding
        missing, wrong = [], {}
        for row in self._rows:
            present = [location for location in keys.locations(row.name) if location.key in self._tensors]
            known |= {location.key for location in present}
            if not present:
                missing.append(f"{row.name} ({keys.locations(row.name)[0].key})")
                continue
            location = found[row.name] = present[0]
            tensors = [self._tensors[other.key] for other in present]
            if any(tensor.pieces != tensors[0].pieces for tensor in tensors):
                wrong[location.key] = f"{row.name} is stored twice, as {' and '.join(other.key for other in present)}"
            elif not _fits(row, leading[location.key], tensors[0].shape, may_be_padded=not converted):
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
        self._check_records({location.key for location in found.values()})
        return found

    def _check_records(self, keys: Iterable[str]) -> None:
        """Checks that each piece has bytes of its own, so that the size of the files bounds the number of pieces."""
        damaged = "it is damaged, get the checkpoint again"
        records: list[tuple[str, int, int, str]] = []  # file, offset, end, what is there
        for key in sorted(keys):
            tensor = self._tensors[key]
            for piece in tensor.pieces:
                what = f"{key} {list(piece.offsets)}"
                num_bytes = math.prod(piece.sizes) * tensor.dtype.itemsize
                if piece.length < num_bytes + _ZIP_BYTES:
                    raise UserError(
                        f"{self.path} places {num_bytes:,} bytes, {what}, in a record of {piece.length:,} bytes in "
                        f"{piece.file}; {damaged}"
                    )
                records.append((piece.file, piece.offset, piece.offset + piece.length, what))
        for (file, _, end, what), (next_file, start, _, other) in pairwise(sorted(records)):
            if file == next_file and start < end:
                raise UserError(
                    f"{self.path} places {what} and {other} in one record of {file}, or in two that overlap; {damaged}"
                )


def _fits(row: ParameterMap, leading: tuple[int, ...], shape: tuple[int, ...], *, may_be_padded: bool) -> bool:
    expected = (*leading, *row.shape(1))
    if may_be_padded and isinstance(row.sharding, PaddedVocab) and len(shape) == len(expected):
        return shape[1:] == expected[1:] and _may_be_padded(expected[0], shape[0])
    return shape == expected


def _may_be_padded(vocab_size: int, num_rows: int) -> bool:
    """Returns whether a vocabulary may have this number of rows with its padding."""
    return any(num_rows == -(-vocab_size // multiple) * multiple for multiple in _PADDED_TO)


def _count_bounds(tensors: Mapping[str, GlobalTensor]) -> tuple[int, int]:
    """Returns upper bounds of the numbers of layers and experts; each is a tensor of its own or part of a dimension."""
    layers = (tensor.shape[:1] for key, tensor in tensors.items() if key.startswith("decoder.layers."))
    experts = (tensor.shape[:2] for key, tensor in tensors.items() if ".experts." in key)
    return max(len(tensors), *chain(*layers), 0), max(len(tensors), *chain(*experts), 0)


def _overlap(parts: Sequence[StoredPart]) -> bool:
    """Returns whether two of the parts have bytes in common."""
    starts = sorted((part.row, part.column, part.column + part.width, part.row + part.num_rows) for part in parts)
    ends = sorted((end, column) for _, column, _, end in starts)
    # the ranges of bytes of the parts in one row, from left to right
    open_columns: list[int] = []
    open_ends: list[int] = []
    number_of_ends = 0
    for row, column, column_end, _ in starts:
        while ends[number_of_ends][0] <= row:
            place = bisect_left(open_columns, ends[number_of_ends][1])
            del open_columns[place], open_ends[place]
            number_of_ends += 1
        place = bisect_left(open_columns, column)
        if place and open_ends[place - 1] > column:
            return True
        if place < len(open_columns) and open_columns[place] < column_end:
            return True
        open_columns.insert(place, column)
        open_ends.insert(place, column_end)
    return False


def _pieces_by_index(
    folder: Path, key: str, tensor: GlobalTensor, depth: int, checksums: Mapping[PieceName, int]
) -> dict[tuple[int, ...], list[StoredPart]]:
    """Returns index into the first `depth` dimensions -> the stored parts of that slice."""
    found: dict[tuple[int, ...], list[StoredPart]] = {}
    for piece in tensor.pieces:
        if 0 in piece.sizes:
            continue
        record = Record(piece.offset, piece.length, checksums.get((key, piece.offsets)))
        sizes, offsets = list(piece.sizes)[depth:], piece.offsets[depth:]
        num_rows = sizes.pop(0)
        width = torch.Size(sizes).numel() * tensor.dtype.itemsize
        # after the rows a tensor has at most one dimension
        column = offsets[1] * tensor.dtype.itemsize if sizes else 0
        leading = product(*(range(o, o + s) for o, s in zip(piece.offsets[:depth], piece.sizes[:depth], strict=True)))
        for number, index in enumerate(leading):
            part = StoredPart(
                folder / piece.file, number * num_rows * width, offsets[0], num_rows, column, width, record
            )
            found.setdefault(index, []).append(part)
    return found


def _split(row: ParameterMap, whole: StoredTensor) -> list[list[StoredPart]]:
    """Returns the stored parts of each Hugging Face tensor of a row, given those of the Megatron parameter."""
    if row.dim:  # cut by columns: the row has a single source
        return [list(whole.parts)]
    found: list[list[StoredPart]] = [[] for _ in row.hf]
    start = 0
    for block in row.blocks(0, 1):
        if block.source is not None:
            clipped = (part.clipped(start, start + block.size) for part in whole.parts)
            found[block.source] += [part.moved(block.start - start) for part in clipped if part is not None]
        start += block.size
    return found
