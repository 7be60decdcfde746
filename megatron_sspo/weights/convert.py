"""Hugging Face folder <-> Megatron checkpoint, file to file: a permutation of blocks of rows, and no model anywhere."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from megatron_sspo.errors import UserError, naming_the_file
from megatron_sspo.weights import torch_dist
from megatron_sspo.weights.companions import copy_companions, write_config
from megatron_sspo.weights.copy import Copy, Source, Target
from megatron_sspo.weights.destination import check_destination, publish
from megatron_sspo.weights.family import load_family, size
from megatron_sspo.weights.hf_folder import INDEX, HFFolder, file_names, index_text
from megatron_sspo.weights.model_folder import ModelFolder
from megatron_sspo.weights.open_folder import open_folder
from megatron_sspo.weights.progress import Meter
from megatron_sspo.weights.safetensors_file import make_header
from megatron_sspo.weights.stored import DEFAULT_THREADS, Stored
from megatron_sspo.weights.table import Row, check_copies, check_coverage
from megatron_sspo.weights.torch_dist import GlobalTensor, Piece, Places
from megatron_sspo.weights.torch_record import Frame

MANIFEST = "manifest.json"
_JOURNAL = "journal.jsonl"
FILE_BYTES = 2_000_000_000  # at most in a file, but for a tensor that is larger; threads write a file each
PIECE_BYTES = 64 * 1024**2  # at most in a piece of a Megatron tensor, which a loading rank reads as a whole

Direction = Literal["megatron", "hf"]


@dataclass(frozen=True)
class Plan:
    """All that is written, decided before the first byte is."""

    targets: list[Target]
    files: list[tuple[str, int]]  # name, bytes
    headers: list[tuple[str, bytes]]  # file, what it starts with
    manifest: dict[str, Any]  # without checksums; one entry for each target, in order
    tensors: dict[str, GlobalTensor]  # of a Megatron checkpoint
    same: dict[str, str]
    empty: list[str]

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(target.num_bytes for target in self.targets)


@dataclass(frozen=True)
class Summary:
    """What a conversion came to."""

    direction: Direction
    num_tensors: int
    num_bytes: int
    bytes_copied: int  # by this attempt


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    dtype: torch.dtype | None = None,
    companions: Path | None = None,
    to: Direction | None = None,
    num_threads: int | None = None,
) -> Summary:
    """Converts a Hugging Face folder to a `torch_dist` checkpoint, or such a checkpoint to a Hugging Face folder.

    Everything is checked before the first byte is written: every tensor has its row and every row its tensors, names,
    shapes and dtypes. The destination appears under its name when it is complete and on the disk. A conversion that was
    killed goes on where it was when the same command is run again.

    Args:
        dtype: what the tensors are cast to; None keeps every byte as it is.
        companions: of a Megatron checkpoint without config.json and tokenizer, the Hugging Face folder that has them.
        to: refuses a source of the other kind.
        num_threads: None takes as many as there are cores, and at most four.

    Raises:
        UserError: whatever is wrong with source, destination or options; names the file and the tensor.
    """
    if num_threads is None:
        num_threads = DEFAULT_THREADS
    if num_threads < 1:
        raise UserError(
            f"--threads is {num_threads}; it must be 1 or more, or left out, which is {DEFAULT_THREADS} on this machine"
        )
    destination = Path(destination).resolve()
    with naming_the_file():
        check_destination(destination)
        with open_folder(source, companions) as folder:
            direction: Direction = "megatron" if isinstance(folder, HFFolder) else "hf"
            if to is not None and to != direction:
                kinds = {"megatron": "a Hugging Face folder", "hf": "a Megatron checkpoint"}
                raise UserError(f"{source} is {kinds[direction]}, and {kinds[to]} is to be converted")
            plan = make_plan(folder, dtype)
            bytes_copied = _write(folder, plan, destination, num_threads)
    return Summary(direction, len(plan.targets), plan.num_bytes, bytes_copied)


def _write(folder: ModelFolder, plan: Plan, destination: Path, num_threads: int) -> int:
    """Writes what is planned, or what of it earlier attempts have left. Returns how many bytes of tensors it copied."""
    partial = destination.with_name(f"{destination.name}.partial")
    with _locked(partial, _fingerprint(folder, plan), sum(num_bytes for _, num_bytes in plan.files)):
        meter = Meter(f"{folder.path} -> {destination}", plan.num_bytes)
        copy = Copy(partial, plan.targets, plan.files, partial / _JOURNAL, meter.advance)
        try:
            done = copy.bytes_done
            meter.start(done)
            for file, header in plan.headers:
                copy.write(file, 0, header)
            checksums = copy.run(num_threads)
        finally:
            copy.close()
            meter.end()
        _finish(folder, partial, destination, plan, checksums)
    return plan.num_bytes - done


# ------------------------------------------------------------------ plans


def make_plan(folder: ModelFolder, dtype: torch.dtype | None) -> Plan:
    """What is to be written.

    Raises:
        UserError: the folder and the weight table of its family do not cover each other.
    """
    rows = load_family(folder.config).rows(folder.config, size(folder.config, "vocab_size"))
    check_coverage(rows, folder.shapes(), folder.path)
    for name, found in folder.dtypes().items():
        if not found.is_floating_point or found.itemsize < 2:
            raise UserError(f"{name} of {folder.path} is {found}, which is not supported: it is quantized")
    if isinstance(folder, HFFolder):
        check_copies(rows, folder.index, folder.read, folder.path)
        return _to_megatron(folder.stored, rows, dtype)
    return _to_hf(folder.stored, rows, dtype)


def _to_hf(stored: Mapping[str, Stored], rows: Sequence[Row], dtype: torch.dtype | None) -> Plan:
    """Safetensors, with the tensors in the order of the table."""
    tensors = [stored[name] for row in rows for name in row.hf]
    written = [Stored(tensor.name, tensor.shape, dtype or tensor.dtype, ()) for tensor in tensors]
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


def _to_megatron(stored: Mapping[str, Stored], rows: Sequence[Row], dtype: torch.dtype | None) -> Plan:
    """`torch_dist` records, each a block of rows of one parameter of one layer and expert."""
    places = Places(row.name for row in rows)
    leading = places.leading_sizes()
    blocks: list[tuple[Row, int, tuple[Source, ...]]] = []  # row, its first row here, what it is made of
    for row in rows:
        start = 0
        for sources in _cut_into_pieces(_sources(row, stored)):
            blocks.append((row, start, sources))
            start += sum(source.stop - source.start for source in sources)
    targets, files, entries = [], [], []
    pieces: dict[str, list[Piece]] = {}
    frames = [_frame(row, sources, len(places.of(row.name)[0].index), dtype) for row, _, sources in blocks]
    sizes = [len(frame.head(0)) + frame.num_bytes + len(frame.tail(0)) for frame in frames]
    for number, group in enumerate(_fill(sizes)):
        file, offset = f"__0_{number}.distcp", 0
        for i in group:
            row, start, sources = blocks[i]
            place, frame = places.of(row.name)[0], frames[i]
            payload = offset + len(frame.head(0))
            targets.append(Target(f"{place.key} {list(place.index)}", sources, frame.dtype, file, payload, frame))
            offsets = (*place.index, start, *(0 for _ in frame.shape[len(place.index) + 1 :]))
            pieces.setdefault(place.key, []).append(Piece(offsets, frame.shape, file, offset, sizes[i]))
            entry = {"name": place.key, "offsets": list(offsets), "shape": list(frame.shape)}
            entry |= {"dtype": _name(frame.dtype), "file": file}
            entries.append(entry | {"sources": list(dict.fromkeys(source.stored.name for source in sources))})
            offset += sizes[i]
        files.append((file, offset))
    tensors, same = {}, {}
    for row in rows:
        place, *others = places.of(row.name)
        shape = (*leading[place.key], *row.shape(1))
        first = stored[row.hf[0]]
        tensors.setdefault(place.key, GlobalTensor(shape, dtype or first.dtype, tuple(pieces[place.key])))
        # the second name that Megatron's own specifications have for it, stacked over the layers as this one
        same |= {other.key: place.key for other in others if len(other.index) == len(place.index)}
    return Plan(targets, files, [], {"format": "torch_dist", "tensors": entries}, tensors, same, places.extra_states())


def _sources(row: Row, stored: Mapping[str, Stored]) -> list[Source]:
    """The rows of Hugging Face tensors that make up a parameter, in order."""
    dtypes = {stored[name].dtype for name in row.hf}
    if len(dtypes) > 1:
        raise UserError(f"{', '.join(row.hf)} make up one parameter and differ in dtype: convert with --dtype first")
    if row.dim:
        return [Source(stored[row.hf[0]], 0, stored[row.hf[0]].num_rows)]
    return [Source(stored[row.hf[b.source]], b.start, b.stop) for b in row.blocks(0, 1) if b.source is not None]


def _cut_into_pieces(sources: list[Source]) -> Iterable[tuple[Source, ...]]:
    """The same rows in groups of no more than PIECE_BYTES."""
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


def _frame(row: Row, sources: Sequence[Source], depth: int, dtype: torch.dtype | None) -> Frame:
    num_rows = sum(source.stop - source.start for source in sources)
    stored = sources[0].stored
    return Frame(dtype or stored.dtype, (*(1,) * depth, num_rows, *stored.shape[1:]))


def _fill(sizes: Sequence[int]) -> list[list[int]]:
    """Numbers of consecutive items, in groups of no more than FILE_BYTES."""
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


# ------------------------------------------------------------------ the destination


def _fingerprint(folder: ModelFolder, plan: Plan) -> str:
    """Of everything that an unfinished conversion must have in common with the one that goes on with it."""
    files = sorted({file for tensor in folder.stored.values() for file in tensor.files})
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([states, plan.manifest, plan.files]).encode()).hexdigest()


@contextmanager
def _locked(partial: Path, fingerprint: str, num_bytes: int) -> Iterator[None]:
    """Makes the folder of an unfinished conversion, or takes up the one that is there, and keeps others out."""
    note = partial / "fingerprint"
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(note, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another conversion writes {partial} at this moment; wait for it") from None
        known = os.read(descriptor, 1000).decode()
        if known and known != fingerprint:
            raise UserError(
                f"{partial} is an unfinished conversion of other files or with other options; remove it, or run the "
                "command that began it"
            )
        _check_space(partial, num_bytes)
        if not known:
            os.write(descriptor, fingerprint.encode())
        yield
    finally:
        os.close(descriptor)


def _check_space(partial: Path, num_bytes: int) -> None:
    there = sum(file.stat().st_blocks * 512 for file in partial.iterdir())
    free = shutil.disk_usage(partial).free
    if num_bytes - there > free:
        raise UserError(
            f"the disk of {partial} is too full: the conversion needs {(num_bytes - there) / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free; make room or write somewhere else"
        )


def _finish(folder: ModelFolder, partial: Path, destination: Path, plan: Plan, checksums: Sequence[int]) -> None:
    """Everything but the tensors; then the destination gets its name."""
    entries = [{**entry, "crc32": f"{crc:08x}"} for entry, crc in zip(plan.manifest["tensors"], checksums, strict=True)]
    manifest = {**plan.manifest, "source": str(folder.path.resolve()), "tensors": entries}
    if plan.tensors:
        torch_dist.write_index(partial, plan.tensors, plan.same, plan.empty)
    copy_companions(folder.companions, partial)
    write_config(folder.config, partial, {target.dtype for target in plan.targets})
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    for name in (_JOURNAL, "fingerprint"):
        (partial / name).unlink()
    publish(partial, destination)
