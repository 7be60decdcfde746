"""Sources of files: which files a path names, and the options that every source with named fields has."""

import glob
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from megatron_sspo.data.row import Dropped, Fields, Record, Row, rows_from_records
from megatron_sspo.errors import UserError

_COLUMNS = "columns"  # the parameter of a source's `records` that is no option


def rows_of(records: Callable[..., Iterable[Record]]) -> Callable[..., list[Row | Dropped]]:
    """Makes a source: a function that has the options of `records` and the fields of `Fields`, and returns the rows."""
    given = [one for one in inspect.signature(records).parameters.values() if one.name != _COLUMNS]
    named = {
        one.name: inspect.Parameter(
            one.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=one.default_factory() if one.default is MISSING else one.default,  # pyright: ignore
            annotation=one.type,
        )
        for one in fields(Fields)
    }

    signature = inspect.Signature([*given, *named.values()])

    def rows(*arguments: Any, **options: Any) -> list[Row | Dropped]:
        bound = signature.bind(*arguments, **options).arguments
        chosen = {name: bound.pop(name) for name in named if name in bound}
        return rows_from_records(records(**bound), Fields(**chosen))

    rows.__doc__ = f"Reads the rows of records.\n\nThe options are those of `Fields`, and:\n\n{records.__doc__}"
    rows.__signature__ = signature  # pyright: ignore
    return rows


def records_of_files(read: Callable[[Path], Iterable[Record]], suffix: str) -> Callable[..., Iterator[Record]]:
    """Makes a function that reads the files of a path, or of several, from the one that reads a file."""

    def records(path: str | Path | Sequence[str]) -> Iterator[Record]:
        """Reads a file, all files below a folder, those of a pattern such as `shards/*.jsonl`, or a list of these.

        A record's id has the folder of its file if the files are in several.
        """
        files = [file for one in ([path] if isinstance(path, (str, Path)) else path) for file in _files(one, suffix)]
        common = os.path.commonpath([file.parent.absolute() for file in files])
        for file in files:
            folder = os.path.relpath(file.parent.absolute(), common)
            for record in read(file):
                yield record if folder == "." else replace(record, id=f"{folder}/{record.id}")

    return records


def _files(path: str | Path, suffix: str) -> list[Path]:
    """Returns the files of a path, in the order of their names."""
    if Path(path).is_dir():
        found = sorted(Path(path).rglob(f"*{suffix}"))
    elif glob.has_magic(str(path)) and not Path(path).exists():
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
    else:
        return [Path(path)]
    if not found:
        raise UserError(f"there is no {suffix} file at {path}: check the path of the source")
    return found
