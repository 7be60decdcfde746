"""Parquet files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from megatron_sspo.data.row import Fields, Record, Row, row_from_record
from megatron_sspo.data.sources import arrow_values
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
        path: the file.
        question, answer, demonstration, answer_after: see `Fields`.

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
    import pyarrow.parquet

    path = Path(path)
    try:
        file = pyarrow.parquet.ParquetFile(path)
        wanted = [name for name in file.schema_arrow.names if name in columns or not columns]
        read, rows_before = arrow_values.reader_of(file.schema_arrow), 0
        for batch in file.iter_batches(columns=wanted):
            for number, values in enumerate(batch.to_pylist(), start=rows_before + 1):
                yield Record(id=f"{path.name}:{number}", place=f"{path}, row {number}", values=read(values))
            rows_before += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"{path} cannot be read as Parquet ({' '.join(str(error).split())}): is it another format, or cut short?"
        ) from error
