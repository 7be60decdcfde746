"""From the configuration's source and options to rows."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from megatron_sspo.data.row import Row
from megatron_sspo.errors import UserError
from megatron_sspo.resolve import resolve


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
    function = resolve("data", source, "rows")
    _check_options(function, source, options)
    return function(**options)


def _check_options(function: Callable[..., list[Row]], source: str, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [name for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
    unknown = [name for name in options if name not in named and not open_ended]
    if unknown:
        raise UserError(f"the source {source!r} has no option {', '.join(unknown)}: its options are {', '.join(named)}")
    required = [name for name in named if parameters[name].default is inspect.Parameter.empty]
    missing = [name for name in required if name not in options]
    if missing:
        raise UserError(
            f"the source {source!r} needs the option {', '.join(missing)}: its options are {', '.join(named)}"
        )
