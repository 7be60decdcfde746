"""The folder of the tensors in a run's checkpoint, compared with the manifest of the checkpoint."""

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from megatron_sspo.files.manifest import NAME, Manifest, check_sizes, read_manifest

_FOLDER = "trainer"  # the folder of the tensors
_TENSORS = ".distcp"  # the suffix of the files that can be large


def read_run_manifest(path: Path) -> Manifest | None:
    """Returns the manifest of the run's checkpoint whose folder of tensors `path` is; None: there is none.

    Raises:
        UserError: the manifest is damaged, or a file of the folder is missing, left over or of another size.
    """
    path = path.absolute()
    if path.name != _FOLDER or not os.path.lexists(path.parent / NAME):
        return None
    found = read_manifest(path.parent)
    check_sizes(path.parent, found, folder=f"{_FOLDER}/")
    return found


def part_to_check(written: Manifest, files: Collection[str]) -> Manifest:
    """Returns the part of a run's manifest about the small files of the folder of tensors, and about `files` there."""
    read = {f"{_FOLDER}/{name}" for name in files}
    chosen = {
        name: entry
        for name, entry in written.files.items()
        if name in read or (name.startswith(f"{_FOLDER}/") and not name.endswith(_TENSORS))
    }
    return replace(written, files=chosen)
