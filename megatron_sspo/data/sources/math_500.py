"""MATH-500: five hundred test problems of MATH, chosen by Lightman et al. (arXiv 2305.20050)."""

from pathlib import Path

from megatron_sspo.data.row import Row
from megatron_sspo.data.sources.published import Published

_SET = Published(
    name="math_500",
    repository="HuggingFaceH4/MATH-500",
    splits=("test",),
    columns=("problem", "answer"),
    metadata=("subject", "level", "unique_id"),
)


def rows(split: str = "test", path: str | Path = "") -> list[Row]:
    """Returns the problems with their answers in LaTeX; subject, level and unique_id go into the metadata.

    Published as HuggingFaceH4/MATH-500: test (500 rows). Columns: `problem`, `solution`, `answer`, `subject`, `level`,
    `unique_id`.

    Args:
        split: "test", the only split.
        path: files to read in place of the hub; see `Published.records`.

    Raises:
        UserError: see `Published.records`.
    """
    return _SET.rows(split, path)
