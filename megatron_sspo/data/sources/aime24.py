"""AIME 2024, both papers: integers 0 to 999. The publisher calls the split train; nothing here trains on it."""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="aime24",
    repository="HuggingFaceH4/aime_2024",
    splits=("train",),
    columns=("problem", "answer"),
    metadata=("id", "year"),
).rows
