"""GSM8K: word problems of grade-school arithmetic (Cobbe et al., arXiv 2110.14168).

Published as openai/gsm8k, configuration main: train (7,473 rows) and test (1,319). Columns: `question`; `answer`, a
worked solution whose last line is "#### 72".
"""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="gsm8k",
    repository="openai/gsm8k",
    config="main",
    splits=("train", "test"),
    columns=("question", "answer"),
    answer_after="####",
).rows
