"""Loads the rows of the configured source."""

from collections.abc import Mapping
from typing import Any

from megatron_sspo.config.resolve import call_with_options, resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.data.row import Dropped, Row


def load_rows(source: str, options: Mapping[str, Any]) -> list[Row | Dropped]:
    """Returns all rows of a source, and the rows that the source itself dropped.

    Args:
        source: a path that ends in .jsonl or .parquet, the name of a module of `data/sources` (math-500 is math_500),
            or package.module:attribute.
        options: keyword arguments of the source's `rows`.

    Raises:
        UserError: there is no such source or file, the source does not have an option, or a row is malformed.
    """
    for suffix in ("jsonl", "parquet"):
        if source.endswith(f".{suffix}"):
            source, options = suffix, {"path": source, **options}
            break
    name = source if ":" in source else source.replace("-", "_")
    what = f"the source {source!r}"
    rows = call_with_options(resolve("data/sources", name, "rows"), options, what)
    with user_code_errors(what):  # a generator runs only here
        return list(rows)
