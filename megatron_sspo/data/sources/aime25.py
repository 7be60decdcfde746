"""AIME 2025: both papers of the American Invitational Mathematics Examination; answers are integers 0 to 999.

Published as math-ai/aime25: test (30 rows). Columns: `problem`, `answer` (text), `id`.
"""

from megatron_sspo.data.sources.published import Published

rows = Published(
    name="aime25",
    repository="math-ai/aime25",
    splits=("test",),
    columns=("problem", "answer"),
    metadata=("id",),
).rows
