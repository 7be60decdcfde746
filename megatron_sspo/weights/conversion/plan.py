"""The plan of a conversion: which blocks of rows are copied where. No model is built."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion.copy import Source, Target
from megatron_sspo.weights.family import check_counts, load_family, size
from megatron_sspo.weights.formats.checkpoint_keys import CheckpointKeys
from megatron_sspo.weights.formats.hf_folder import INDEX, HFFolder, file_names, index_text
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.safetensors_file import make_header
from megatron_sspo.weights.formats.stored import StoredTensor
from megatron_sspo.weights.formats.torch_dist import GlobalTensor, Piece
from megatron_sspo.weights.formats.torch_record import RecordFrame
from megatron_sspo.weights.table import ParameterMap

FILE_BYTES = 2_000_000_000  # maximum of a file, unless one tensor is larger; each thread writes its own file
PIECE_BYTES = 64 * 1024**2  # maximum of a piece of a Megatron tensor; a loading rank reads whole pieces


@dataclass(frozen=True)
class Plan:
    """Everything that a conversion writes, decided before the first byte is written."""

    targets: list[Target]
    files: list[tuple[str, int]]  # name, bytes
    headers: list[tuple[str, bytes]]  # file, the bytes at its start
    manifest: dict[str, Any]  # without checksums; one entry for each target, in order
    tensors: dict[str, GlobalTensor]  # this and the next two: the arguments of `torch_dist.write_index`
    aliases: dict[str, str]
    none_keys: list[str]

    @property
    def num_bytes(self) -> int:
        """The number of bytes of all tensors."""
        return sum(target.num_bytes for target in self.targets)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of all tensors."""
        return {target.dtype for target in self.targets}


def make_plan(folder: ModelFolder, dtype: torch.dtype | None) -> Plan:
    """Plans the conversion of a folder into the other kind.

    Raises:
        UserError: the folder and the weight table of its family do not match, or a tensor's dtype is not supported.
    """
    family, num_tensors = load_family(folder.config, folder.config_folder), len(folder.stored)
    check_counts(folder.config, num_tensors, num_tensors, folder.path)
    rows = family.rows(folder.config, size(folder.config, "vocab_size"))
    folder.check(rows)
    if isinstance(folder, HFFolder):
        return _to_megatron(folder.stored, rows, dtype)
    return _to_hf(folder.stored, rows, dtype)


def _to_hf(stored: Mapping[str, StoredTensor], rows: Sequence[ParameterMap], dtype: torch.dtype | None) -> Plan:
    """Plans safetensors files, with the tensors in the order of the table."""
    tensors = [stored[name] for row in rows for name in row.hf]
    written = [StoredTensor(tensor.name, tensor.shape, dtype or tensor.dtype, ()) for tensor in tensors]
    groups = _fill([tensor.num_bytes for tensor in written])
    targets, files, headers, weight_map = [], [], [], {}
    for file, group in zip(file_names(len(groups)), groups, strict=True):
        header, offsets = make_header([written[i] for i in group])
        headers.append((file, header))
        for i, offset in zip(group, offsets, strict=True):
            source = Source(tensors[i], 0, tensors[i].num_rows)
            targets.append(Target(tensors[i].name, (source,), written[i].dtype, file, offset))
            weight_map[tensors[i].name] = file
        files.append((file, len(header) + sum(written[i].num_bytes for i in group)))
    if len(groups) > 1:
        text = index_text(weight_map, sum(tensor.num_bytes for tensor in written)).encode()
        headers.append((INDEX, text))
        files.append((INDEX, len(text)))
    entries = [
        {"name": t.name, "shape": list(t.shape), "dtype": _name(t.dtype), "file": target.file, "sources": [t.name]}
        for t, target in zip(written, targets, strict=True)
    ]
    return Plan(targets, files, headers, {"format": "safetensors", "tensors": entries}, {}, {}, [])


def _to_megatron(stored: Mapping[str, StoredTensor], rows: Sequence[ParameterMap], dtype: torch.dtype | None) -> Plan:
    """Plans `torch_dist` records, each a block of rows of one parameter of one layer and expert."""
    keys = CheckpointKeys(row.name for row in rows)
    leading = keys.leading_sizes()
    _check_dtypes(keys, rows, stored, dtype)
    blocks: list[tuple[ParameterMap, int, tuple[Source, ...]]] = []  # row of the table, the block's first row, sources
    for row in rows:
        start = 0
        for sources in _cut_into_pieces(_sources(row, stored)):
            blocks.append((row, start, sources))
            start += sum(source.stop - source.start for source in sources)
    targets, files, entries = [], [], []
    pieces: dict[str, list[Piece]] = {}
    frames = [_frame(row, sources, len(keys.locations(row.name)[0].index), dtype) for row, _, sources in blocks]
    sizes = [len(frame.head(0)) + frame.num_bytes + len(frame.tail(0)) for frame in frames]
    for number, group in enumerate(_fill(sizes)):
        file, offset = f"__0_{number}.distcp", 0
        for i in group:
            row, start, sources = blocks[i]
            location, frame = keys.locations(row.name)[0], frames[i]
            data_offset = offset + len(frame.head(0))
            name = f"{location.key} {list(location.index)}"
            targets.append(Target(name, sources, frame.dtype, file, data_offset, frame))
            offsets = (*location.index, start, *(0 for _ in frame.shape[len(location.index) + 1 :]))
            pieces.setdefault(location.key, []).append(Piece(offsets, frame.shape, file, offset, sizes[i]))
            entry = {"name": location.key, "offsets": list(offsets), "shape": list(frame.shape)}
            entry |= {"dtype": _name(frame.dtype), "file": file}
            entries.append(entry | {"sources": list(dict.fromkeys(source.stored.name for source in sources))})
            offset += sizes[i]
        files.append((file, offset))
    tensors, aliases = {}, {}
    for row in rows:
        location, *others = keys.locations(row.name)
        shape = (*leading[location.key], *row.shape(1))
        first = stored[row.hf[0]]
        tensors.setdefault(location.key, GlobalTensor(shape, dtype or first.dtype, tuple(pieces[location.key])))
        # the second key that Megatron's own specs have for it, if it is stacked over the layers in the same way
        aliases |= {other.key: location.key for other in others if len(other.index) == len(location.index)}
    manifest = {"format": "torch_dist", "tensors": entries}
    return Plan(targets, files, [], manifest, tensors, aliases, keys.extra_state_keys())


def _check_dtypes(
    keys: CheckpointKeys, rows: Sequence[ParameterMap], stored: Mapping[str, StoredTensor], dtype: torch.dtype | None
) -> None:
    """Checks that tensors that become one (layers, experts, q, k and v) have one dtype, unless all are cast to one."""
    first: dict[str, StoredTensor] = {}
    for tensor, key in ((stored[name], keys.locations(row.name)[0].key) for row in rows for name in row.hf):
        other = first.setdefault(key, tensor)
        if tensor.dtype != other.dtype and dtype is None:
            raise UserError(
                f"{other.name} is {_name(other.dtype)} and {tensor.name} is {_name(tensor.dtype)}, but Megatron stores "
                f"both in one tensor, {key}; cast all tensors to one dtype with --dtype"
            )


def _sources(row: ParameterMap, stored: Mapping[str, StoredTensor]) -> list[Source]:
    """Returns the rows of Hugging Face tensors that make up a parameter, in order."""
    if row.dim:
        return [Source(stored[row.hf[0]], 0, stored[row.hf[0]].num_rows)]
    return [Source(stored[row.hf[b.source]], b.start, b.stop) for b in row.blocks(0, 1) if b.source is not None]


def _cut_into_pieces(sources: list[Source]) -> Iterable[tuple[Source, ...]]:
    """Yields the same rows in groups of at most PIECE_BYTES."""
    most = max(1, PIECE_BYTES // max(1, sources[0].stored.row_bytes))
    piece: list[Source] = []
    free = most
    for source in sources:
        start = source.start
        while start < source.stop:
            stop = min(source.stop, start + free)
            piece.append(Source(source.stored, start, stop))
            free -= stop - start
            start = stop
            if not free:
                yield tuple(piece)
                piece, free = [], most
    if piece:
        yield tuple(piece)


def _frame(row: ParameterMap, sources: Sequence[Source], depth: int, dtype: torch.dtype | None) -> RecordFrame:
    num_rows = sum(source.stop - source.start for source in sources)
    stored = sources[0].stored
    return RecordFrame(dtype or stored.dtype, (*(1,) * depth, num_rows, *stored.shape[1:]))


def _fill(sizes: Sequence[int]) -> list[list[int]]:
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
