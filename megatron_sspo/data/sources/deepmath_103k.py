"""DeepMath-103K: hard questions with answers that can be verified (He et al., arXiv 2504.11456)."""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="deepmath_103k",
    repository="zwhe99/DeepMath-103K",
    splits=("train",),
    columns=("question", "final_answer"),
    metadata=("difficulty", "topic"),
).rows
