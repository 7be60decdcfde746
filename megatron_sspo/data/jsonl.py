"""JSON Lines: one object a line, UTF-8."""

import json
from pathlib import Path

from megatron_sspo.data.row import Fields, Row, existing_file, row_from_record
from megatron_sspo.errors import UserError


def rows(
    path: str | Path,
    question: str = "question",
    answer: str = "answer",
    demonstration: str = "",
    answer_after: str = "",
) -> list[Row]:
    """Reads a file. Blank lines are skipped; every field that is not named goes into the metadata.

    Args:
        path: of the file.
        question: field of the question: text or chat messages.
        answer: field of the gold answer: text or a number. A dot goes into a nested object.
        demonstration: field of a worked response; none by default.
        answer_after: the gold answer is what follows the last such mark in its field, as "####" in GSM8K.

    Raises:
        UserError: no such file, or a malformed line; names the file, the line from 1, and the field.
    """
    path = existing_file(path)
    fields = Fields(question=question, answer=answer, demonstration=demonstration, answer_after=answer_after)
    found: list[Row] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                record = json.loads(line.decode())
            except UnicodeDecodeError as error:
                raise UserError(f"{place}: not UTF-8 ({error.reason}): convert the file to UTF-8") from error
            except ValueError as error:
                raise UserError(f"{place}: not JSON ({error}): each line has to be one whole JSON object") from error
            found.append(row_from_record(record, fields, id=f"{path.name}:{number}", place=place))
    return found
