"""Datasets of the Hugging Face hub, or local folders that `datasets` can read."""

from collections.abc import Iterator, Sequence
from typing import Any

from megatron_sspo.config.naming import one_line
from megatron_sspo.data.files import rows_of
from megatron_sspo.data.row import Record
from megatron_sspo.data.sources import arrow_values
from megatron_sspo.errors import UserError


def records(
    name: str, split: str = "train", config: str | None = None, columns: Sequence[str] = ()
) -> Iterator[Record]:
    """Yields the rows of one split, from the hub or the local cache.

    Args:
        name: "owner/name" on the hub, or a folder.
        split: split in the notation of `datasets`, such as "train[:100]".
        config: the dataset's configuration, if it has several.
        columns: columns to read, if the dataset has them; empty reads all.

    Raises:
        UserError: the hub cannot be reached, or there is no such dataset, configuration or split.
    """
    import datasets

    try:
        dataset: Any = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # of the hub, of the readers of all formats, and of archives
        cause = error.__cause__ or error  # `datasets` hides the reader's error behind one of its own
        raise UserError(
            f"the dataset {name!r} with config={config!r} and split={split!r} cannot be loaded "
            f"({type(cause).__name__}: {one_line(str(cause))}): check its name, config and split; if the hub cannot be "
            "reached, load it once where there is a network, or give a .jsonl or .parquet file, as the source or as "
            "the option path of a named set"
        ) from error
    if columns:
        dataset = dataset.select_columns([column for column in dataset.column_names if column in columns])
    read = arrow_values.reader_of(dataset.features.arrow_schema)
    for number, values in enumerate(dataset, start=1):
        yield Record(id=f"{name}/{split}:{number}", place=f"{name} ({split}), row {number}", values=read(values))


rows = rows_of(records)  # for example rows("openai/gsm8k", "test", "main", answer_after="####")
