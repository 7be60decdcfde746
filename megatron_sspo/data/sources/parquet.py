"""Parquet files."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from megatron_sspo.data.other_format import check_is_parquet
from megatron_sspo.data.row import Fields, Record, Row, existing_file, row_from_record
from megatron_sspo.data.sources import arrow_values
from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.files.reading import open_file

_LONGEST_START = 64  # bytes, by which another format is recognized


def rows(
    path: str | Path,
    question: str = "question",
    answer: str = "answer",
    demonstration: str = "",
    answer_after: str = "",
) -> list[Row]:
    """Reads a file; every column that is not named goes into the metadata.

    Args:
        path: the file.
        question: column of the question: text, or a list of chat messages.
        answer: column of the gold answer: text, a number or a boolean; "" if the rows have none.
            A dot selects a field of a nested record, as in "reward_model.ground_truth".
        demonstration: column of a worked response; none by default.
        answer_after: mark in the answer's column; the gold answer is the text after its last occurrence.

    Raises:
        UserError: there is no such file, it is not Parquet, or a row is malformed; names the file, the row (from 1)
            and the column.
    """
    fields = Fields(question=question, answer=answer, demonstration=demonstration, answer_after=answer_after)
    return [row_from_record(record, fields) for record in records(path)]


def records(path: str | Path, columns: Sequence[str] = ()) -> Iterator[Record]:
    """Yields the rows of a file.

    Args:
        columns: columns to read, if the file has them; empty reads all.

    Raises:
        UserError: there is no such file, or it is not Parquet.
    """
    import pyarrow
    import pyarrow.parquet

    path = existing_file(path)
    try:
        with open_file(path) as start:
            check_is_parquet(path, start.read(_LONGEST_START))
        file = pyarrow.parquet.ParquetFile(path)
        if twice := [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]:
            raise UserError(f"{path} has two columns {short_repr(twice[0])}, of which one would be lost: rename one")
        wanted = [name for name in file.schema_arrow.names if name in columns or not columns]
        read, rows_before = arrow_values.reader_of(file.schema_arrow), 0
        for batch in file.iter_batches(columns=wanted):
            for number, values in enumerate(batch.to_pylist(), start=rows_before + 1):
                yield Record(id=f"{path.name}:{number}", place=f"{path}, row {number}", values=read(values))
            rows_before += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, LookupError) as error:
        raise UserError(
            f"{path} cannot be read as Parquet ({' '.join(str(error).split())}): is it another format, or cut short?"
        ) from error
