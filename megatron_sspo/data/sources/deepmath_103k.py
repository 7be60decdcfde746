"""DeepMath-103K: hard questions whose final answers can be verified (He et al., arXiv 2504.11456)."""

from pathlib import Path

from megatron_sspo.data.row import Row
from megatron_sspo.data.sources.published import Published

_SET = Published(
    name="deepmath_103k",
    repository="zwhe99/DeepMath-103K",
    splits=("train",),
    columns=("question", "final_answer"),
    metadata=("difficulty", "topic"),
)


def rows(split: str = "train", path: str | Path = "") -> list[Row]:
    """Returns the questions with the final answer as the gold answer; difficulty and topic go into the metadata.

    Published as zwhe99/DeepMath-103K: train (103,022 rows). Columns: `question`, `final_answer`, `difficulty`, `topic`,
    and `r1_solution_1` to `_3`, which are long and not read.

    Args:
        split: "train", the only split.
        path: files to read in place of the hub; see `Published.records`.

    Raises:
        UserError: see `Published.records`.
    """
    return _SET.rows(split, path)
