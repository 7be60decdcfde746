"""MATH-500: five hundred test problems of MATH, chosen by Lightman et al. (arXiv 2305.20050).

Published as HuggingFaceH4/MATH-500: test (500 rows). Columns: `problem`, `solution`, `answer` (LaTeX), `subject`,
`level`, `unique_id`.
"""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="math_500",
    repository="HuggingFaceH4/MATH-500",
    splits=("test",),
    columns=("problem", "answer"),
    metadata=("subject", "level", "unique_id"),
).rows
