"""AIME 2025, both papers: integers 0 to 999."""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="aime25",
    repository="math-ai/aime25",
    splits=("test",),
    columns=("problem", "answer"),
    metadata=("id",),
).rows
