"""Datasets of the Hugging Face hub, or a local folder that `datasets` can read."""

from megatron_sspo.data.row import Fields, Row, row_from_record
from megatron_sspo.errors import UserError


def rows(
    name: str,
    split: str = "train",
    config: str | None = None,
    question: str = "question",
    answer: str = "answer",
    demonstration: str = "",
    answer_after: str = "",
) -> list[Row]:
    """Loads one split, from the hub or the local cache.

    GSM8K, as an example: `rows("openai/gsm8k", "test", "main", answer_after="####")`.

    Args:
        name: "owner/name" on the hub, or a folder.
        split: in the notation of `datasets`, "train[:100]" included.
        config: the dataset's configuration, where it has several.
        question: column of the question: text, or a list of chat messages.
        answer: column of the gold answer: text or a number. A dot goes into a nested record.
        demonstration: column of a worked response; none by default.
        answer_after: the gold answer is what follows the last such mark in its column.

    Raises:
        UserError: no hub, no such dataset, configuration or split, or a malformed row.
    """
    import datasets
    from datasets.exceptions import DatasetsError

    fields = Fields(question=question, answer=answer, demonstration=demonstration, answer_after=answer_after)
    try:
        records = datasets.load_dataset(name, config, split=split)
    except ConnectionError as error:
        raise UserError(
            f"the dataset {name!r} is not in the local cache and the Hugging Face hub cannot be reached ({error}): "
            "load it once where there is a network, or give a .jsonl or .parquet file as the source"
        ) from error
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"the dataset {name!r} with config={config!r} and split={split!r} cannot be loaded: "
            f"{' '.join(str(error).split())}"
        ) from error
    return [
        row_from_record(record, fields, id=f"{name}/{split}:{number}", place=f"{name} ({split}), row {number}")
        for number, record in enumerate(records, start=1)
    ]
