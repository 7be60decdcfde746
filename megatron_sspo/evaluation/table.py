"""Tables of evaluations: the paper's, with models as rows and sets as columns, and that of a run's end."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MEASURE = re.compile(r"pass@1|avg@\d+|pass@\d+")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an evaluation of one model came to."""

    model: str
    sets: Mapping[str, Mapping[str, float]]  # numbers by set
    titles: Mapping[str, str]  # of the sets' columns


def paper_table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: a model a row, a set a column, shares in percent with their 95 % intervals.

    Where answers were sampled, a model has a row for each measure: pass@1 (greedy), avg@k, pass@k. Where there are
    several models, the last column has the mean difference to the first one over the sets, if it has all of them.
    """
    names = list(dict.fromkeys(name for result in results for name in result.sets))
    titles = {name: title for result in results for name, title in result.titles.items()}
    measures = list(dict.fromkeys(measure for result in results for measure in _measures(result)))
    several = len(results) > 1
    head = ["Model", *(["Measure"] if len(measures) > 1 else []), *(titles[name] for name in names)]
    rows: list[list[str]] = []
    for measure in measures:
        for result in results:
            if not any(measure in numbers for numbers in result.sets.values()):
                continue
            cells = [_cell(result.sets.get(name, {}), measure) for name in names]
            gain = [_gain(results[0], result, names, measure)] if several else []
            rows.append([result.model, *([measure] if len(measures) > 1 else []), *cells, *gain])
    return [*head, *(["Δ Avg"] if several else [])], rows


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(cell: str) -> str:
    return " ".join(cell.replace("|", r"\|").split())


def before_and_after(first: Mapping[str, float], last: Mapping[str, float], name: str) -> list[tuple[str, str, str]]:
    """Rows for one set: each number at the first and at the last evaluation of a run, with its interval."""

    def cell(row: Mapping[str, float], key: str) -> str:
        if key not in row:
            return "-"
        interval = f" ({row[f'{key}/low']:.3f}-{row[f'{key}/high']:.3f})" if f"{key}/low" in row else ""
        return f"{row[key]:.3f}{interval}"

    keys = [key for key in last if key.startswith(f"{name}/") and not key.endswith(("/low", "/high"))]
    return [(key.removeprefix(f"{name}/"), cell(first, key), cell(last, key)) for key in keys]


def _measures(result: Result) -> list[str]:
    """pass@1, and of what was sampled avg@k and pass@k for the whole k alone."""
    found = list(dict.fromkeys(key for numbers in result.sets.values() for key in numbers if MEASURE.fullmatch(key)))
    sizes = {key.partition("@")[2] for key in found if key.startswith("avg@")}
    return [key for key in found if key == "pass@1" or key.partition("@")[2] in sizes]


def _cell(numbers: Mapping[str, float], measure: str) -> str:
    if measure not in numbers:
        return "–"
    value, low, high = (100 * numbers[f"{measure}{end}"] for end in ("", "/low", "/high"))
    return f"{value:.1f} ({low:.1f}–{high:.1f})"


def _gain(base: Result, result: Result, names: Sequence[str], measure: str) -> str:
    if result is base or not all(measure in r.sets.get(name, {}) for r in (base, result) for name in names):
        return "–"
    gains = [result.sets[name][measure] - base.sets[name][measure] for name in names]
    return f"{100 * sum(gains) / len(gains):+.1f}"
