"""Tables of evaluations: the table of the paper, with models as rows and sets as columns, and a run's summary."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron_sspo.errors import escape_unprintable

MEASURE = re.compile(r"pass@1|avg@\d+|pass@\d+")
_FREE = ("engine", "seed", "samples", "dropped")  # evaluations that differ in these alone are still comparable
_SAMPLED = ("sampling.temperature", "sampling.top_p")  # greedy answers do not depend on these


@dataclass(frozen=True)
class Result:
    """The results of one model."""

    model: str
    sets: Mapping[str, Mapping[str, float]]  # metrics by set
    titles: Mapping[str, str]  # column title by set
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by set; see `EvaluationRecord.open_set`


def paper_table(results: Sequence[Result], *, unlike: Sequence[Result] = ()) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows: one model per row, one set per column, percentages with 95 % intervals.

    If answers were sampled, a model has one row per measure: pass@1 (greedy), avg@k, pass@k. With several models, the
    last column is the mean difference to the first model over the sets, if both have all sets and the model is not one
    of `unlike`.
    """
    names = list(dict.fromkeys(name for result in results for name in result.sets))
    titles = {name: title for result in results for name, title in result.titles.items()}
    measures = list(dict.fromkeys(measure for result in results for measure in _measures(result)))
    has_measures, has_gain = len(measures) > 1, len(results) > 1
    head = ["Model", *["Measure"] * has_measures, *(titles[name] for name in names), *["Δ Avg"] * has_gain]
    rows: list[list[str]] = []
    for measure in measures:
        for result in results:
            if any(measure in metrics for metrics in result.sets.values()):
                cells = [_cell(result.sets.get(name, {}), measure) for name in names]
                is_unlike = any(result is other for other in unlike)
                gain = "–" if is_unlike else _gain(results[0], result, names, measure)
                rows.append([result.model, *[measure] * has_measures, *cells, *[gain] * has_gain])
    return head, rows


def find_differences(results: Sequence[Result]) -> list[tuple[Result, str]]:
    """Compares each evaluation of a set with the first one, if the settings of both are known.

    Returns:
        Each evaluation that differs from the first, with a sentence that names the set and the fields.
    """
    found = []
    for name in dict.fromkeys(name for result in results for name in result.sets):
        known = [result for result in results if name in result.sets and name in result.settings]
        for other in known[1:]:
            if fields := _fields(known[0].settings[name], other.settings[name]):
                text = f"{name}: {other.model} and {known[0].model} have different {', '.join(fields)}, so their"
                found.append((other, f"{text} numbers do not compare the models alone"))
    return found


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with a key such as "sampling.max_tokens" for each field of a group."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return found


def left_out(results: Sequence[Result]) -> list[str]:
    """Returns a sentence for each model that has no row in `paper_table`, because none of its sets has a pass rate."""
    return [
        f"{result.model} has no row: the rewards of its sets have no part 'answer'; its numbers are in results.json"
        for result in results
        if not _measures(result)
    ]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table in Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(cell: str) -> str:
    return escape_unprintable(" ".join(cell.replace("|", r"\|").split()))  # a terminal obeys escape sequences


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Returns the metrics of a set on one line, without the ends of their intervals."""
    return "  ".join(f"{name} {value:.3f}" for name, value in metrics.items() if not name.endswith(("/low", "/high")))


def before_and_after(first: Mapping[str, float], last: Mapping[str, float], name: str) -> list[tuple[str, str, str]]:
    """Returns rows for one set: each metric in the first and in the last evaluation of a run, with its interval."""

    def cell(row: Mapping[str, float], key: str) -> str:
        if key not in row:
            return "-"
        interval = f" ({row[f'{key}/low']:.3f}-{row[f'{key}/high']:.3f})" if f"{key}/low" in row else ""
        return f"{row[key]:.3f}{interval}"

    keys = [key for key in last if key.startswith(f"{name}/") and not key.endswith(("/low", "/high"))]
    return [(key.removeprefix(f"{name}/"), cell(first, key), cell(last, key)) for key in keys]


def _measures(result: Result) -> list[str]:
    """Returns the measures of the table: pass@1, avg@k, and pass@k for the same k only."""
    found = list(dict.fromkeys(key for metrics in result.sets.values() for key in metrics if MEASURE.fullmatch(key)))
    sizes = {key.partition("@")[2] for key in found if key.startswith("avg@")}
    return [key for key in found if key == "pass@1" or key.partition("@")[2] in sizes]


def _cell(metrics: Mapping[str, float], measure: str) -> str:
    if measure not in metrics:
        return "–"
    value, low, high = (100 * metrics[f"{measure}{end}"] for end in ("", "/low", "/high"))
    return f"{value:.1f} ({low:.1f}–{high:.1f})"


def _gain(base: Result, result: Result, names: Sequence[str], measure: str) -> str:
    if result is base or not all(measure in r.sets.get(name, {}) for r in (base, result) for name in names):
        return "–"
    gains = [result.sets[name][measure] - base.sets[name][measure] for name in names]
    return f"{100 * sum(gains) / len(gains):+.1f}"


def _fields(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    free = () if first["samples"] and other["samples"] else _SAMPLED
    before, now = (flat({key: value for key, value in each.items() if key not in _FREE}) for each in (first, other))
    return [key for key in {**before, **now} if key not in free and before.get(key) != now.get(key)]
