"""Loads the rows of a source, and opens the prompts of a run's configuration."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.resolve import call_with_options, resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.data.row import Dropped, Row, check_row
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.run import Prompts


def prompt_stream(prompts: Prompts, tokenizer: Any, *, seed: int, shuffle: bool) -> PromptStream:
    """Builds the stream that `prompts` describes.

    Args:
        shuffle: whether the order is that of training, which `prompts` decides, and not that of the source.

    Raises:
        UserError: the source cannot be read, has no rows, or has a prompt that is too long.
    """
    return PromptStream(
        _rows(prompts),
        tokenizer,
        template=prompts.template,
        system=prompts.system,
        max_tokens=prompts.max_tokens,
        seed=seed,
        shuffle=shuffle and prompts.shuffle,
        overlong=prompts.overlong,
    )


def describe_sources(streams: Mapping[str, PromptStream]) -> Iterator[str]:
    """Yields what the columns of the streams' sources became, each line once."""
    known: set[str] = set()
    for name, stream in streams.items():
        yield from (f"{name}: {line}" for line in stream.columns if line not in known)
        known.update(stream.columns)


def load_rows(source: str, options: Mapping[str, Any]) -> list[Row | Dropped]:
    """Returns all rows of a source, and the rows that the source itself dropped.

    Args:
        source: a path or pattern that ends in .jsonl or .parquet, a folder of such files, with a "/" in its path, the
            name of a module of `data/sources` (math-500 is math_500), or package.module:attribute.
        options: keyword arguments of the source's `rows`.

    Raises:
        UserError: there is no such source or file, the source does not have an option, or a row is malformed.
    """
    what = f"the source {source!r}"
    for suffix in ("jsonl", "parquet"):
        is_folder = "/" in source and ":" not in source and next(Path(source).rglob(f"*.{suffix}"), None) is not None
        if source.endswith(f".{suffix}") or is_folder:
            source, options = suffix, {**options, "path": source}
            break
    name = source if ":" in source else source.replace("-", "_")
    if ":" not in name and not name.isidentifier():
        raise UserError(
            f"{what} is neither the name of a set nor a file that ends in .jsonl or .parquet, nor a folder/ of these: "
            "for a set of the Hugging Face hub or a folder of other files, set source to 'huggingface' and its option "
            "name; convert a file of another form"
        )
    rows = call_with_options(resolve("data/sources", name, "rows"), options, what)
    if not isinstance(rows, Iterable):
        raise UserError(f"{what} returned {describe_value(rows)}: let it return a list of rows, without async")
    with user_code_errors(what):  # a generator runs only here
        found = list(rows)
    for row in found:
        check_row(row, what)
    return found


def _rows(prompts: Prompts) -> list[Row | Dropped]:
    """Returns the rows of the source, without the questions of the sets in `prompts.without`. Raises UserError."""
    rows = load_rows(prompts.source, prompts.options)
    if not rows:
        raise UserError(f"the source {prompts.source!r} has no rows: check its path, split and options")
    if not prompts.without:
        return rows
    from megatron_sspo.data.decontamination import decontaminate

    return decontaminate(rows, [row for other in prompts.without for row in _rows(other)])
