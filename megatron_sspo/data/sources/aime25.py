"""AIME 2025: both papers of the American Invitational Mathematics Examination; answers are integers 0 to 999."""

from pathlib import Path

from megatron_sspo.data.row import Row
from megatron_sspo.data.sources.published import Published

_SET = Published(
    name="aime25",
    repository="math-ai/aime25",
    splits=("test",),
    columns=("problem", "answer"),
    metadata=("id",),
)


def rows(split: str = "test", path: str | Path = "") -> list[Row]:
    """Returns the thirty problems with their answers.

    Published as math-ai/aime25: test (30 rows). Columns: `problem`, `answer` (text), `id`.

    Args:
        split: "test", the only split.
        path: files to read in place of the hub; see `Published.records`.

    Raises:
        UserError: see `Published.records`.
    """
    return _SET.rows(split, path)
