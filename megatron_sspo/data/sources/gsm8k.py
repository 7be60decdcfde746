"""GSM8K: word problems of grade-school arithmetic (Cobbe et al., arXiv 2110.14168)."""

from pathlib import Path

from megatron_sspo.data.row import Fields, Row, row_from_record
from megatron_sspo.data.sources.published import Published

_SET = Published(
    name="gsm8k",
    repository="openai/gsm8k",
    config="main",
    splits=("train", "test"),
    columns=("question", "answer"),
)
_FIELDS = Fields(question="question", answer="answer", answer_after="####")


def rows(split: str = "train", path: str | Path = "") -> list[Row]:
    """Returns the questions with the number after "####" as the gold answer.

    Published as openai/gsm8k, configuration main: train (7,473 rows) and test (1,319). Columns: `question`; `answer`, a
    worked solution whose last line is "#### 72".

    Args:
        split: "train" or "test".
        path: files to read in place of the hub; see `Published.records`.

    Raises:
        UserError: see `Published.records`, or a row has no "####".
    """
    return [row_from_record(record, _FIELDS) for record in _SET.records(split, path)]
