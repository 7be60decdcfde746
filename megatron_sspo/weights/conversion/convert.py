"""Conversion of a Hugging Face folder to a Megatron checkpoint or back, file to file: plan, copy, publish."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.reading import open_file
from megatron_sspo.files.units import format_bytes
from megatron_sspo.weights.conversion.copy import TensorCopier
from megatron_sspo.weights.conversion.plan import Plan, make_plan
from megatron_sspo.weights.conversion.progress import Meter, check_content, print_padding
from megatron_sspo.weights.formats import torch_dist
from megatron_sspo.weights.formats.companions import (
    check_text_files,
    check_tokenizer_files,
    config_text,
    copy_tokenizer_files,
    write_config,
)
from megatron_sspo.weights.formats.converted import MANIFEST
from megatron_sspo.weights.formats.destination import check_destination, flush_folder, partial_path, publish, real_path
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.open_folder import check_config_folder, open_folder
from megatron_sspo.weights.formats.stored import DEFAULT_THREADS

_MAX_THREADS = 256
_JOURNAL, _FINGERPRINT = "journal.jsonl", "fingerprint"  # the notes of a conversion; they are removed last of all
_COMPLETE = "\ncomplete"  # follows the hash in the fingerprint when all other files are on the disk

Direction = Literal["megatron", "hf"]


@dataclass(frozen=True)
class Summary:
    """The result of a conversion."""

    direction: Direction
    num_tensors: int
    num_bytes: int
    bytes_copied: int  # by this attempt


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    dtype: torch.dtype | None = None,
    config_folder: Path | None = None,
    to: Direction | None = None,
    num_threads: int | None = None,
) -> Summary:
    """Converts a Hugging Face folder to a `torch_dist` checkpoint, or such a checkpoint to a Hugging Face folder.

    All checks run before the first byte is written: every tensor has a row, every row has its tensors, and names,
    shapes and dtypes match. The destination appears under its name only when it is complete and on disk. If a
    conversion was killed or the disk was full, running the same command again continues it.

    Args:
        dtype: the dtype that tensors are cast to; None keeps every byte as it is.
        config_folder: the Hugging Face folder with config.json and tokenizer, for a Megatron checkpoint without them.
        to: the expected direction; a source of the other kind is refused.
        num_threads: the number of threads; None means one per core, at most four.

    Raises:
        UserError: the source, the destination or an option is wrong; the message names the file and the tensor.
    """
    if num_threads is None:
        num_threads = DEFAULT_THREADS
    if not 1 <= num_threads <= _MAX_THREADS:
        raise UserError(
            f"--threads is {num_threads}; it must be from 1 to {_MAX_THREADS}, or left out, which is {DEFAULT_THREADS} "
            "on this machine"
        )
    destination = real_path(destination)
    with os_errors_as_user_errors(partial_path(destination)):
        published = _published(destination)
        sources = [Path(source), *([config_folder] if config_folder else [])]
        if published is None:
            check_destination(destination, sources)
        with open_folder(source, config_folder) as folder:
            direction: Direction = "megatron" if isinstance(folder, HFFolder) else "hf"
            if to is not None and to != direction:
                kinds = {"megatron": "a Hugging Face folder", "hf": "a Megatron checkpoint"}
                raise UserError(f"--to {to} needs {kinds[to]}, and {source} is {kinds[direction]}")
            check_config_folder(config_folder, folder)
            check_text_files(folder.config_folder)
            plan = make_plan(folder, dtype)
            if published == _fingerprint(folder, plan) and _is_whole(folder, plan, destination):
                _remove_notes(destination)  # a kill had come between the last two steps
                return Summary(direction, len(plan.targets), plan.num_bytes, 0)
            check_destination(destination, sources)
            check_content(folder)
            print_padding(folder)
            bytes_copied = _write(folder, plan, destination, num_threads)
    return Summary(direction, len(plan.targets), plan.num_bytes, bytes_copied)


def _write(folder: ModelFolder, plan: Plan, destination: Path, num_threads: int) -> int:
    """Writes the planned files, except for the parts that earlier attempts wrote. Returns the tensor bytes copied."""
    partial = partial_path(destination)
    fingerprint = _fingerprint(folder, plan)
    with _locked(partial, fingerprint, sum(num_bytes for _, num_bytes in plan.files)):
        meter = Meter(f"{folder.path} -> {destination}", plan.num_bytes)
        copy = TensorCopier(partial, plan.targets, plan.files, partial / _JOURNAL, meter.advance)
        try:
            done = copy.bytes_done
            meter.start(done)
            for file, header in plan.headers:
                copy.write(file, 0, header)
            checksums = copy.run(num_threads)
        except UserError as error:
            if not isinstance(error.__cause__, OSError):  # damage, or a value that cannot be cast: it would fail again
                shutil.rmtree(partial)
            raise
        finally:
            copy.close()
            meter.end()
        if _fingerprint(folder, plan) != fingerprint:
            shutil.rmtree(partial)
            raise UserError(
                f"the weights in {folder.path} were changed while they were converted; run the command again"
            )
        _finish(folder, partial, destination, plan, checksums)
    return plan.num_bytes - done


def _fingerprint(folder: ModelFolder, plan: Plan) -> str:
    """Returns a hash of the source files and the options; only a conversion with the same hash may be continued."""
    files = sorted({file for tensor in folder.stored.values() for file in tensor.files})
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([states, plan.manifest, plan.files]).encode()).hexdigest()


@contextmanager
def _locked(partial: Path, fingerprint: str, num_bytes: int) -> Iterator[None]:
    """Creates the folder of an unfinished conversion, or reopens it, and locks it against other processes."""
    note = partial / _FINGERPRINT
    partial.mkdir(parents=True, exist_ok=True)
    names = os.listdir(partial)
    # a conversion writes the fingerprint before it makes another file
    if names and not (note.is_file() and (names == [_FINGERPRINT] or note.stat().st_size)):
        raise UserError(f"{partial} exists and is not an unfinished conversion; remove it or write somewhere else")
    for entry in sorted(partial.rglob("*")):
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):  # its target would be written
            raise UserError(f"{entry} is not a file of a conversion but a link or a device; remove {partial}")
    descriptor = os.open(note, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another conversion writes {partial} at this moment; wait for it") from None
        except OSError:  # a file system without locks, where a second conversion is not noticed
            pass
        known = os.read(descriptor, 1000).decode(errors="replace").removesuffix(_COMPLETE)
        if known and known != fingerprint:
            raise UserError(
                f"{partial} is an unfinished conversion of other files or with other options; remove it, or run the "
                "command that began it"
            )
        try:
            _check_space(partial, num_bytes)
        except UserError:
            if not known:  # nothing was begun that could be continued
                shutil.rmtree(partial)
            raise
        os.pwrite(descriptor, fingerprint.encode(), 0)
        os.truncate(descriptor, len(fingerprint))
        yield
    finally:
        os.close(descriptor)


def _check_space(partial: Path, num_bytes: int) -> None:
    there = sum(file.stat().st_blocks * 512 for file in partial.iterdir())
    free = shutil.disk_usage(partial).free
    if num_bytes - there > free:
        raise UserError(
            f"the disk of {partial} is too full: the conversion needs {format_bytes(num_bytes - there)}, and "
            f"{format_bytes(free)} are free; make room or write somewhere else"
        )


def _finish(folder: ModelFolder, partial: Path, destination: Path, plan: Plan, checksums: Sequence[int]) -> None:
    """Writes everything but the tensors, then gives the destination its name."""
    entries = [{**entry, "crc32": f"{crc:08x}"} for entry, crc in zip(plan.manifest["tensors"], checksums, strict=True)]
    manifest = {**plan.manifest, "source": str(folder.path.resolve()), "tensors": entries}
    if plan.tensors:
        torch_dist.write_index(partial, plan.tensors, plan.aliases, plan.none_keys)
    copy_tokenizer_files(folder.config_folder, partial)
    write_config(folder.config, partial, plan.dtypes)
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    flush_folder(partial)
    # The notes stay until the folder has its name, so that a kill or an error before loses no work.
    with (partial / _FINGERPRINT).open("a", encoding="utf-8") as note:
        note.write(_COMPLETE)
    publish(partial, destination)
    _remove_notes(destination)


def _published(destination: Path) -> str | None:
    """Returns the fingerprint of a conversion that was stopped after it gave `destination` its name; None: none was."""
    note = destination / _FINGERPRINT
    if not note.is_file():
        return None
    with open_file(note) as file:
        found = file.read(1000).decode(errors="replace")
    return found.removesuffix(_COMPLETE) if found.endswith(_COMPLETE) else None


def _is_whole(folder: ModelFolder, plan: Plan, destination: Path) -> bool:
    """Returns whether a destination has the files that the conversion writes; of the large ones, sizes are compared."""
    texts = {
        destination / file.relative_to(folder.config_folder): file.read_bytes()
        for file in check_tokenizer_files(folder.config_folder)
    }
    texts[destination / "config.json"] = config_text(folder.config, plan.dtypes).encode()
    sizes = {destination / name: num_bytes for name, num_bytes in plan.files}
    others = [destination / name for name in (MANIFEST, *(torch_dist.INDEX_FILES if plan.tensors else ()))]
    return (
        all(path.is_file() for path in [*texts, *sizes, *others])
        and all(path.stat().st_size == num_bytes for path, num_bytes in sizes.items())
        and all(path.read_bytes() == text for path, text in texts.items())
    )


def _remove_notes(destination: Path) -> None:
    for name in (_JOURNAL, _FINGERPRINT):
        (destination / name).unlink(missing_ok=True)
