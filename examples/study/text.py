"""Markdown of the report: sections, tables and numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from examples.study.statistics import Estimate


@dataclass(frozen=True, kw_only=True)
class Section:
    """The answer to one question.

    Attributes:
        title: of docs/study.md, as plain text.
        verdict: a line for the summary, as plain text.
        body: paragraphs and tables, in Markdown.
    """

    title: str
    verdict: str
    body: Sequence[str]

    def __str__(self) -> str:
        return "\n\n".join((f"## {escape(self.title)}", f"**Verdict: {escape(self.verdict)}.**", *self.body))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of Markdown from cells of plain text."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(escape, line))} |" for line in lines)


def escape(text: str) -> str:
    """Returns plain text for Markdown: a star, as in lr*, begins no emphasis, and a bar ends no cell of a table."""
    return text.replace("*", "\\*").replace("|", "\\|")


def interval(estimate: Estimate, *, signed: bool = False, digits: int = 2) -> str:
    """Returns "0.12 (0.05 to 0.20)", or the mean alone if there is no interval."""
    mean = number(estimate.mean, signed=signed, digits=digits)
    if estimate.low is None or estimate.high is None:
        return mean
    low, high = (number(end, signed=signed, digits=digits) for end in (estimate.low, estimate.high))
    return f"{mean} ({low} to {high})"


def number(value: float, *, signed: bool = False, digits: int = 2) -> str:
    """Returns a number with a true minus sign, and zero without a sign."""
    value = round(value, digits) + 0.0
    return f"{value:{'+' if signed and value else ''}.{digits}f}".replace("-", "−")
