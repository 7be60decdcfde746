"""GSM8K: word problems (Cobbe et al., arXiv 2110.14168); an answer is a solution that ends in "#### 72"."""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="gsm8k",
    repository="openai/gsm8k",
    splits=("train", "test"),
    columns=("question", "answer"),
    config="main",
    answer_after="####",
).rows
