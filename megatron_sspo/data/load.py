"""From the configuration's source and options to rows."""

from collections.abc import Mapping
from typing import Any

from megatron_sspo.data.row import Row
from megatron_sspo.resolve import call_with_options, resolve


def load_rows(source: str, options: Mapping[str, Any]) -> list[Row]:
    """All rows of a source.

    Args:
        source: a path that ends in .jsonl or .parquet, the name of a file of `megatron_sspo/data`, or
            package.module:attribute.
        options: the keyword arguments of the source's `rows`.

    Raises:
        UserError: no such source or file, an option that it does not have, or a malformed row.
    """
    for suffix in ("jsonl", "parquet"):
        if source.endswith(f".{suffix}"):
            source, options = suffix, {"path": source, **options}
            break
    return call_with_options(resolve("data", source, "rows"), options, f"the source {source!r}")
