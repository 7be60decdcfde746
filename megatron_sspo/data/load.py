"""Loads the rows of the configured source."""

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sized
from typing import Any

from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import call_with_options, resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.data.row import Dropped, Row, check_row
from megatron_sspo.errors import UserError

_MOST_OF_A_GENERATOR = 1_000_000  # rows, after which it counts as endless


def load_rows(source: str, options: Mapping[str, Any]) -> list[Row | Dropped]:
    """Returns all rows of a source, and the rows that the source itself dropped.

    Args:
        source: a path that ends in .jsonl or .parquet, the name of a module of `data/sources` (math-500 is math_500),
            or package.module:attribute.
        options: keyword arguments of the source's `rows`.

    Raises:
        UserError: there is no such source or file, the source does not have an option, or a row is malformed.
    """
    what = f"the source {source!r}"
    for suffix in ("jsonl", "parquet"):
        if source.endswith(f".{suffix}"):
            if "path" in options:
                raise UserError(
                    f"the source is the file {source!r}, and the option path {describe_value(options['path'])}: leave "
                    "the option out"
                )
            source, options = suffix, {"path": source, **options}
            break
    if ":" not in source and not source.replace("-", "_").isidentifier():
        raise UserError(
            f"{what} is neither the name of a set nor a file that ends in .jsonl or .parquet: for a set of the Hugging "
            "Face hub or a folder, set source to 'huggingface' and its option name; convert a file of another form"
        )
    name = source if ":" in source else source.replace("-", "_")
    rows = call_with_options(resolve("data/sources", name, "rows"), options, what)
    if not isinstance(rows, Iterable):
        if inspect.iscoroutine(rows):
            rows.close()  # otherwise Python warns that the coroutine was never awaited
        raise UserError(f"{what} returned {describe_value(rows)}: let it return a list of rows, without async")
    with user_code_errors(what):  # a generator runs only here
        found = list(rows) if isinstance(rows, Sized) else list(itertools.islice(rows, _MOST_OF_A_GENERATOR + 1))
    if not isinstance(rows, Sized) and len(found) > _MOST_OF_A_GENERATOR:
        raise UserError(
            f"{what} has given {_MOST_OF_A_GENERATOR:,} rows and goes on: let it end, or return a list if it has more"
        )
    for row in found:
        check_row(row, what)
    return found
