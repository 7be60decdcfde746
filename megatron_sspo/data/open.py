"""Opens the prompts of a run's configuration."""

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_sspo.data.decontamination import decontaminate
from megatron_sspo.data.load import load_rows
from megatron_sspo.data.row import Dropped, Row
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.run import Prompts


def prompt_stream(prompts: Prompts, tokenizer: Any, *, seed: int, shuffle: bool) -> PromptStream:
    """Builds the stream that `prompts` describes.

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
        shuffle=shuffle,
        overlong=prompts.overlong,
    )


def describe_sources(streams: Mapping[str, PromptStream]) -> Iterator[str]:
    """Yields what the columns of the streams' sources became, each line once."""
    known: set[str] = set()
    for name, stream in streams.items():
        yield from (f"{name}: {line}" for line in stream.columns if line not in known)
        known.update(stream.columns)


def _rows(prompts: Prompts) -> list[Row | Dropped]:
    """Returns the rows of the source, without the questions of the sets in `prompts.without`.

    Raises:
        UserError: the source or one of these sets cannot be read, or has no rows.
    """
    rows = load_rows(prompts.source, prompts.options)
    if not rows:
        raise UserError(f"the source {prompts.source!r} has no rows: check its path, split and options")
    if not prompts.without:
        return rows
    return decontaminate(rows, [row for other in prompts.without for row in _rows(other)])
