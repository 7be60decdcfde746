"""JSON Lines files: one object per line, in UTF-8."""

import json
from collections.abc import Iterator
from pathlib import Path

from megatron_sspo.data.row import Fields, Record, Row, row_from_record
from megatron_sspo.errors import UserError, os_errors_as_user_errors


def rows(
    path: str | Path,
    question: str = "question",
    answer: str = "answer",
    demonstration: str = "",
    answer_after: str = "",
) -> list[Row]:
    """Reads a file. Blank lines are skipped; every field that is not named goes into the metadata.

    Args:
        path: the file.
        question, answer, demonstration, answer_after: see `Fields`.

    Raises:
        UserError: there is no such file, or a line is malformed; names the file, the line (from 1) and the field.
    """
    fields = Fields(question=question, answer=answer, demonstration=demonstration, answer_after=answer_after)
    return [row_from_record(record, fields) for record in records(path)]


def records(path: str | Path) -> Iterator[Record]:
    """Yields the lines of a file that are not blank.

    Raises:
        UserError: there is no such file, it cannot be read, or a line is not JSON in UTF-8.
    """
    path = Path(path)
    with os_errors_as_user_errors(), path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                values = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))  # a mark may come first
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{place}: not JSON in UTF-8 ({error}): each line must be one whole JSON object, and the file "
                    "neither compressed, nor one JSON array, nor a pointer of Git LFS"
                ) from error
            yield Record(id=f"{path.name}:{number}", place=place, values=values)
