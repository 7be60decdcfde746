"""Parquet files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from megatron_sspo.data.files import records_of_files, rows_of
from megatron_sspo.data.row import Record
from megatron_sspo.data.sources import arrow_values
from megatron_sspo.errors import UserError


def records(path: Path, columns: Sequence[str] = ()) -> Iterator[Record]:
    """Yields the rows of a file, with those of the columns that it has; empty reads all."""
    import pyarrow.parquet

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


rows = rows_of(records_of_files(records, ".parquet"))
