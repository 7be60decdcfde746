"""The tables of a sweep in Markdown: interquartile means by setting, and probabilities of improvement."""

from collections.abc import Mapping, Sequence

from sspo_lab.results import Results
from sspo_lab.statistics import CONFIDENCE, SAMPLES, Interval, interquartile_mean, probability_of_improvement

ALL = "all settings"
Scores = Mapping[str, Mapping[str, Sequence[float]]]  # value of the compared field -> setting -> a number for each run
_MAX_NAMES = 10  # names of unfinished runs to print


def sweep_table(results: Results) -> str:
    """Returns all tables, each with a title."""
    parts = [
        f"Interquartile means over seeds with {CONFIDENCE:.0%} intervals ({SAMPLES:,} stratified bootstrap samples, "
        "percentiles), and the number of runs.\n"
    ]
    if names := results.unfinished:
        more = f", and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        parts.append(f"Not finished, and left out: {'; '.join(names[:_MAX_NAMES])}{more}.\n")
    columns = [*results.settings, *([ALL] if len(results.settings) > 1 else [])]
    at_the_end = {value: results.finals(value) for value in results.values}
    over_the_run = {value: results.areas(value) for value in results.values}
    title = f"{results.measure}, at the end"
    parts.append(_titled(title, _means(results, at_the_end, columns)))
    of_run = f"{results.measure}, mean over the run (area under its curve)"
    parts.append(_titled(of_run, _means(results, over_the_run, columns)))
    for setting in columns if len(results.values) > 1 else ():
        where = f", {setting}" if setting else ""
        rows = [
            [first, *(_improvement(at_the_end, first, second, setting) for second in results.values)]
            for first in results.values
        ]
        text = f"P(row > column), a tie counting half: {title}{where}"
        parts.append(_titled(text, [[results.field, *results.values], *rows]))
    return "\n".join(parts)


def _means(results: Results, scores: Scores, columns: Sequence[str]) -> list[list[str]]:
    rows = [[results.field or "", *(setting or "all seeds" for setting in columns)]]
    for value in results.values:
        cells = []
        for setting in columns:
            (strata,) = _strata(scores, [value], setting)
            found = f"{_cell(interquartile_mean(strata))}, {sum(map(len, strata))}" if strata else "–"
            cells.append(found)
        rows.append([value if results.field else "all runs", *cells])
    return rows


def _improvement(scores: Scores, first: str, second: str, setting: str) -> str:
    strata = _strata(scores, [first, second], setting)
    return _cell(probability_of_improvement(*strata)) if first != second and all(strata) else "–"


def _strata(scores: Scores, values: Sequence[str], setting: str) -> list[list[Sequence[float]]]:
    """Returns the numbers of each value by setting; for `ALL`, of the settings in which every value has a run."""
    settings = [setting]
    if setting == ALL:
        settings = [one for one in next(iter(scores.values())) if all(one in of_value for of_value in scores.values())]
    return [[scores[value][one] for one in settings if one in scores[value]] for value in values]


def _cell(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:.3f}"
    return f"{interval.estimate:.3f} ({interval.low:.3f}–{interval.high:.3f})"


def _titled(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown below its title."""
    return f"**{title}**\n\n{markdown(rows[0], rows[1:])}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table in Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(escaped, line))} |\n" for line in lines)


def escaped(cell: str) -> str:
    """Returns a text on one line, without the sign between cells and what a terminal obeys."""
    text = " ".join(cell.replace("|", r"\|").split())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)  # a terminal obeys escape sequences
