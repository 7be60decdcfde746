"""The list of a checkpoint's files with sizes and checksums, to find damage before anything is loaded."""

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError, first_line
from megatron_sspo.files.writing import write_atomically

NAME = "manifest.json"
_PIECE = 16 * 1024**2  # bytes per read
_THREADS = 8  # a shared file system is faster with several readers


@dataclass(frozen=True)
class Entry:
    """The size in bytes and the CRC-32 of one file of a checkpoint."""

    size: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """The files of a checkpoint, and the run that wrote it."""

    files: Mapping[str, Entry]  # by their paths relative to the checkpoint
    run: Mapping[str, Any]  # the configuration as `config_to_json` returns it


def read_manifest(checkpoint: Path) -> Manifest:
    """Reads a checkpoint's manifest. Raises UserError if it is missing or damaged."""
    try:
        text = (checkpoint / NAME).read_bytes().decode("utf-8")
        content = json.loads(text)
        manifest = Manifest({name: Entry(*entry) for name, entry in content["files"].items()}, content["run"])
        is_as_written = text == _to_text(content["run"], content["files"])
    except FileNotFoundError as error:
        raise _damaged_error(checkpoint, f"it has no {NAME}") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise _damaged_error(checkpoint, f"{NAME} cannot be read: {reason}") from error
    if not is_as_written:
        raise _damaged_error(checkpoint, f"the content of {NAME} is not what was written")
    return manifest


def write_manifest(checkpoint: Path, manifest: Manifest) -> None:
    """Writes the manifest, as the last file, into a checkpoint that does not have its final name yet."""
    files = {name: [entry.size, entry.crc32] for name, entry in manifest.files.items()}
    write_atomically(checkpoint / NAME, _to_text(manifest.run, files))


def files_of(checkpoint: Path) -> list[str]:
    """Returns the files that belong in a manifest, as sorted paths relative to the checkpoint."""
    names = (path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file())
    return sorted(name for name in names if name != NAME)


def checksums_of_rank(rank: int, trainer: Path) -> dict[str, Entry]:
    """Returns the checksums of the tensor files that a rank wrote into the folder `trainer` of a checkpoint.

    Each rank reads its own files: their pages are in its host's page cache, and another host may not see new files of
    a shared folder for some seconds.
    """
    return checksums(trainer, sorted(path.name for path in trainer.glob(f"__{rank}_*.distcp")))


def checksums(
    checkpoint: Path, names: Iterable[str], advance: Callable[[int], object] | None = None
) -> dict[str, Entry]:
    """Returns sizes and checksums of these files of a checkpoint; several files are read in parallel.

    Their threads call `advance` with each number of bytes that were read.
    """
    ordered = list(names)
    with ThreadPoolExecutor(_THREADS) as threads:
        return dict(zip(ordered, threads.map(lambda name: _entry(checkpoint / name, advance), ordered), strict=True))


def check_sizes(checkpoint: Path, manifest: Manifest, *, folder: str = "") -> None:
    """Compares names and sizes, which is fast; those of a folder such as "trainer/" or, by default, all.

    Raises UserError if a file is missing, is not in the manifest, or has another size.
    """
    entries = {name: entry for name, entry in manifest.files.items() if name.startswith(folder)}
    found = {name: (checkpoint / name).stat().st_size for name in files_of(checkpoint) if name.startswith(folder)}
    for name in sorted(entries.keys() | found.keys()):
        if name not in found:
            raise _damaged_error(checkpoint, f"{name} is missing")
        if name not in entries:
            raise _damaged_error(checkpoint, f"{name} does not belong to it")
        if found[name] != (size := entries[name].size):
            raise _damaged_error(checkpoint, f"{name} has {found[name]:,} bytes and was written with {size:,}")


def check_content(
    checkpoint: Path,
    manifest: Manifest,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    advance: Callable[[int], object] | None = None,
) -> None:
    """Compares the checksums of this rank's share of the files; `advance`: see `checksums`.

    Raises UserError if the content of a file is not what was written, or it cannot be read.
    """
    names = sorted(manifest.files, key=lambda name: (-manifest.files[name].size, name))[rank::num_ranks]
    try:
        found = checksums(checkpoint, names, advance)
    except OSError as error:
        raise _damaged_error(checkpoint, f"{error.filename} cannot be read: {error.strerror}") from error
    for name in names:
        if found[name] != manifest.files[name]:
            raise _damaged_error(checkpoint, f"the content of {name} is not what was written")


def _entry(path: Path, advance: Callable[[int], object] | None) -> Entry:
    size = checksum = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            checksum = _crc32(piece, checksum)
            if advance is not None:
                advance(len(piece))
    return Entry(size, checksum)


def _crc32(content: bytes, before: int = 0) -> int:
    """Returns the CRC-32 of a content, or of what comes `before` it with it."""
    from isal.isal_zlib import crc32  # a host that runs servers alone does without it

    return crc32(content, before)


def _to_text(run: Any, files: Any) -> str:
    """Returns the text of a manifest, with a checksum of its content; the values read from a text give that text."""
    content = {"run": run, "files": files}
    return json.dumps({**content, "crc32": _crc32(json.dumps(content).encode())}, indent=1)


def _damaged_error(checkpoint: Path, what: str) -> UserError:
    return UserError(f"the checkpoint {checkpoint} is damaged ({what}): delete that folder to resume from an older one")
