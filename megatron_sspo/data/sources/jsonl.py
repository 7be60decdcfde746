"""JSON Lines files: one object per line, in UTF-8."""

import json
from collections.abc import Iterator
from pathlib import Path

from megatron_sspo.data.files import records_of_files, rows_of
from megatron_sspo.data.row import Record
from megatron_sspo.errors import UserError, os_errors_as_user_errors


def records(path: Path) -> Iterator[Record]:
    """Yields the lines of a file that are not blank; a line that is no JSON has the error as its values."""
    with os_errors_as_user_errors(), path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                values = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))  # a mark may come first
            except (ValueError, RecursionError) as error:
                values = UserError(
                    f"{place}: not JSON in UTF-8 ({error}): each line must be one whole JSON object, and the file "
                    "neither compressed, nor one JSON array, nor a pointer of Git LFS"
                )
            yield Record(id=f"{path.name}:{number}", place=place, values=values)


rows = rows_of(records_of_files(records, ".jsonl"))
