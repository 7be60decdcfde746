"""Reads and writes files of named NumPy arrays (npz), without pickled objects."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from megatron_sspo.files.writing import flush_to_disk, replacing


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays of numbers, atomically, and flushes them to disk."""
    with replacing(path) as temporary:
        with temporary.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
        flush_to_disk(temporary)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file, after their checksums have been compared with their content.

    Raises ValueError if the file is damaged, or is of another kind, and OSError if it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except OSError:
        raise
    except Exception as error:  # of zipfile, of zlib, and of NumPy's reader of headers
        raise ValueError(f"{path.name} is not a file of arrays, or is damaged: {error}") from error
