"""JSON Lines files: one object per line, in UTF-8."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_sspo.data.other_format import check_is_jsonl
from megatron_sspo.data.row import Fields, Record, Row, existing_file, row_from_record
from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import dict_without_duplicates, open_file

_TOO_LONG = "Exceeds the limit"  # begins Python's message about an integer of too many digits


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
        question: field of the question: text or chat messages.
        answer: field of the gold answer: text, a number or a boolean; "" if the rows have none.
            A dot selects a field of a nested object.
        demonstration: field of a worked response; none by default.
        answer_after: mark in the answer's field, such as "####" in GSM8K; the gold answer is the text after its last
            occurrence.

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
    path = existing_file(path)
    with _read_errors_as_user_errors(path), open_file(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if number == 1:
                check_is_jsonl(path, line)
            place = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # a byte order mark may come first
                values = json.loads(text, object_pairs_hook=dict_without_duplicates)
            except UnicodeDecodeError as error:
                raise UserError(f"{place}: not UTF-8 ({error.reason}): convert the file to UTF-8") from error
            except (json.JSONDecodeError, RecursionError) as error:
                raise UserError(f"{place}: not JSON ({error}): each line must be one whole JSON object") from error
            except ValueError as error:  # a name that occurs twice, or a number of more digits than Python converts
                reason = "a number has thousands of digits" if str(error).startswith(_TOO_LONG) else str(error)
                raise UserError(f"{place}: not a record that can be read ({reason}): correct the line") from error
            yield Record(id=f"{path.name}:{number}", place=place, values=values)


@contextmanager
def _read_errors_as_user_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # one that a read raises has no file name
        raise UserError(f"cannot read {path}: {error.strerror}; repair it, or copy it to another disk") from error
