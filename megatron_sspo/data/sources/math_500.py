"""MATH-500: test problems of MATH, chosen by Lightman et al. (arXiv 2305.20050); answers are LaTeX."""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="math_500",
    repository="HuggingFaceH4/MATH-500",
    splits=("test",),
    columns=("problem", "answer"),
    metadata=("subject", "level", "unique_id"),
).rows
