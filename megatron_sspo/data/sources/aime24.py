"""AIME 2024: both papers of the American Invitational Mathematics Examination; answers are integers 0 to 999."""

from pathlib import Path

from megatron_sspo.data.row import Row
from megatron_sspo.data.sources.published import Published

_SET = Published(
    name="aime24",
    repository="HuggingFaceH4/aime_2024",
    splits=("train",),
    columns=("problem", "answer"),
    metadata=("id", "year"),
)


def rows(split: str = "train", path: str | Path = "") -> list[Row]:
    """Returns the thirty problems with their answers.

    Published as HuggingFaceH4/aime_2024: train (30 rows). Columns: `id`, `problem`, `solution`,
    `answer` (text), `url`, `year`.

    The publisher calls the split train; this package does not train on it.

    Args:
        split: "train", the only split.
        path: files to read in place of the hub; see `Published.records`.

    Raises:
        UserError: see `Published.records`.
    """
    return _SET.rows(split, path)
