"""Parquet files."""

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
    """Reads a file; every column that is not named goes into the metadata.

    Args:
        path: of the file.
        question: column of the question: text, or a list of chat messages.
        answer: column of the gold answer: text or a number. A dot goes into a nested record, as in
            "reward_model.ground_truth".
        demonstration: column of a worked response; none by default.
        answer_after: the gold answer is what follows the last such mark in its column.

    Raises:
        UserError: no such file, not Parquet, or a malformed row; names the file, the row from 1, and the column.
    """
    import pyarrow
    import pyarrow.parquet

    path = existing_file(path)
    fields = Fields(question=question, answer=answer, demonstration=demonstration, answer_after=answer_after)
    try:
        records = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as Parquet ({error}): is it another format, or cut short?") from error
    return [
        row_from_record(record, fields, id=f"{path.name}:{number}", place=f"{path}, row {number}")
        for number, record in enumerate(records, start=1)
    ]
