"""From the configuration's source and options to rows."""

from collections.abc import Mapping
from typing import Any

from megatron_sspo.data.row import Dropped, Row
from megatron_sspo.resolve import call_with_options, resolve
from megatron_sspo.validation.user_code import user_code


def load_rows(source: str, options: Mapping[str, Any]) -> list[Row | Dropped]:
    """All rows of a source, and what it dropped by itself.

    Args:
        source: a path that ends in .jsonl or .parquet, the name of a file of `megatron_sspo/data` (math-500 is
            math_500), or package.module:attribute.
        options: the keyword arguments of the source's `rows`.

    Raises:
        UserError: no such source or file, an option that it does not have, or a malformed row.
    """
    for suffix in ("jsonl", "parquet"):
        if source.endswith(f".{suffix}"):
            source, options = suffix, {"path": source, **options}
            break
    name = source if ":" in source else source.replace("-", "_")
    what = f"the source {source!r}"
    rows = call_with_options(resolve("data", name, "rows"), options, what)
    with user_code(what):  # a generator begins here
        return list(rows)
