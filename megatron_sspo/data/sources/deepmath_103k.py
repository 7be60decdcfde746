"""DeepMath-103K: hard questions whose final answers can be verified (He et al., arXiv 2504.11456).

Published as zwhe99/DeepMath-103K: train (103,022 rows). Columns: `question`, `final_answer`, `difficulty`, `topic`, and
`r1_solution_1` to `_3`, which are long and not read.
"""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="deepmath_103k",
    repository="zwhe99/DeepMath-103K",
    splits=("train",),
    columns=("question", "final_answer"),
    metadata=("difficulty", "topic"),
).rows
