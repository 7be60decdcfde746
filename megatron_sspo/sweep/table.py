"""The tables of a sweep in Markdown: interquartile means by setting, and probabilities of improvement."""

from collections.abc import Mapping, Sequence

from megatron_sspo.evaluation.table import markdown
from megatron_sspo.sweep.results import Results
from megatron_sspo.sweep.statistics import CONFIDENCE, SAMPLES, Interval, interquartile_mean, probability_of_improvement

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
    of_end, of_run = measures(results).items()
    for title, scores in (of_end, of_run):
        parts.append(f"**{title}**\n\n{markdown(*_means(results, scores))}")
    if len(results.values) > 1:
        title, scores = of_end
        for setting in _columns(results):
            where = f", {setting}" if setting else ""
            text = f"P(row > column), a tie counting half: {title}{where}"
            parts.append(f"**{text}**\n\n{markdown(*_matrix(results, scores, setting))}")
    return "\n".join(parts)


def measures(results: Results) -> dict[str, Scores]:
    """Returns title -> scores."""
    return {
        f"{results.measure}, at the end": {value: results.finals(value) for value in results.values},
        f"{results.measure}, mean over the run (area under its curve)": {
            value: results.areas(value) for value in results.values
        },
    }


def common_settings(results: Results, scores: Scores, setting: str) -> Sequence[str]:
    """Returns the settings of a column; for `ALL`, the settings in which every value has a finished run."""
    if setting != ALL:
        return [setting]
    return [one for one in results.settings if all(one in of_value for of_value in scores.values())]


def compare_values(results: Results, scores: Scores, first: str, second: str, setting: str) -> Interval | None:
    """Returns P(first > second); None if one of them has no finished run in the setting."""
    settings = common_settings(results, scores, setting)
    strata = [[scores[value].get(one, ()) for one in settings] for value in (first, second)]
    if not settings or not all(stratum for of_value in strata for stratum in of_value):
        return None
    return probability_of_improvement(*strata)


def summarize(results: Results, scores: Scores, value: str, setting: str) -> tuple[Interval, int] | None:
    """Returns the interquartile mean and the number of runs; None if there is no finished run."""
    strata = [scores[value].get(one, ()) for one in common_settings(results, scores, setting)]
    if not strata or not all(strata):
        return None
    return interquartile_mean(strata), sum(map(len, strata))


def _columns(results: Results) -> list[str]:
    return [*results.settings, *([ALL] if len(results.settings) > 1 else [])]


def _means(results: Results, scores: Scores) -> tuple[list[str], list[list[str]]]:
    columns = _columns(results)
    rows = []
    for value in results.values:
        cells = []
        for setting in columns:
            found = summarize(results, scores, value, setting)
            cells.append(f"{_cell(found[0])}, {found[1]}" if found else "–")
        rows.append([value if results.field else "all runs", *cells])
    return [results.field or "", *(setting or "all seeds" for setting in columns)], rows


def _matrix(results: Results, scores: Scores, setting: str) -> tuple[list[str], list[list[str]]]:
    rows = []
    for first in results.values:
        cells = []
        for second in results.values:
            found = compare_values(results, scores, first, second, setting) if first != second else None
            cells.append(_cell(found) if found else "–")
        rows.append([first, *cells])
    return [results.field, *results.values], rows


def _cell(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.estimate:.3f}"
    return f"{interval.estimate:.3f} ({interval.low:.3f}–{interval.high:.3f})"
