"""AIME 2024: both papers of the American Invitational Mathematics Examination; answers are integers 0 to 999.

Published as HuggingFaceH4/aime_2024: train (30 rows). Columns: `id`, `problem`, `solution`, `answer` (text), `url`,
`year`. The publisher calls the split train; this package does not train on it.
"""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="aime24",
    repository="HuggingFaceH4/aime_2024",
    splits=("train",),
    columns=("problem", "answer"),
    metadata=("id", "year"),
).rows
