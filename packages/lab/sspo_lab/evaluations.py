"""Tables of evaluations, as in the paper: models are rows, and sets columns."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sspo_lab.folder import flat
from sspo_lab.table import escaped, markdown
from sspo_lab.trainer import LabError

_MEASURE = re.compile(r"pass@1|avg@\d+|pass@\d+")
_FREE = ("engine", "seed", "samples", "dropped")  # evaluations that differ in these alone are still comparable
_SAMPLED = tuple(
    f"sampling.{name}" for name in ("temperature", "top_p", "top_k", "min_p")
)  # greedy answers do not depend on these


@dataclass(frozen=True)
class Result:
    """The results of one model."""

    model: str
    sets: Mapping[str, Mapping[str, float]]  # metrics by set
    titles: Mapping[str, str]  # column title by set
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by set, what its answers depend on


def read_result(folder: Path) -> Result:
    """Reads the metrics and the settings of an evaluation; raises LabError if they cannot be read."""
    path = folder / "results.json"
    if not path.exists():
        raise LabError(
            f"{folder} has no {path.name}: it is not an evaluation's folder, or no set of it is complete; name what "
            "megatron-sspo evaluate MODEL --output has written"
        )
    try:
        content, settings = json.loads(path.read_bytes()), {}
        titles = {name: found.pop("title") for name, found in content["sets"].items()}
        path = folder / "evaluation.json"
        if path.exists():
            settings = json.loads(path.read_bytes())["sets"]
        return Result(content["model"], content["sets"], titles, settings)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LabError(
            f"{path} cannot be read ({error!r}): remove it, and evaluate again: answers that are in the folder are kept"
        ) from error


def one_table(folder: Path) -> tuple[list[str], list[list[str]], list[str]]:
    """Returns header and rows of the table of one evaluation, and the sentences of `left_out`."""
    results = [read_result(folder)]
    return *paper_table(results), left_out(results)


def evaluations_table(folders: Sequence[str]) -> str:
    """Returns the paper's table of evaluations in Markdown; the first evaluation is the base of comparison.

    A line below the table names each model without a row, and each set whose evaluations have other prompts, rewards or
    settings.

    Args:
        folders: folders of evaluations, each as `folder` or, to rename its model, as `name=folder`. The runs of a sweep
            have `=` in their names, so a text that is an existing folder has no name before it.
    """
    results = []
    for text in folders:
        name, equals, folder = ("", "", text) if Path(text).is_dir() else text.partition("=")
        result = read_result(Path(folder if equals else text))
        results.append(replace(result, model=name) if equals else result)
    differences = find_differences(results)
    lines = [*left_out(results), *(text for _, text in differences)]
    table = markdown(*paper_table(results, unlike=[other for other, _ in differences]))
    return "\n".join([table, *map(escaped, lines), ""]) if lines else table


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


def left_out(results: Sequence[Result]) -> list[str]:
    """Returns a sentence for each model that has no row in `paper_table`, because none of its sets has a pass rate."""
    return [
        f"{result.model} has no row: the rewards of its sets have no part 'answer'; its numbers are in results.json"
        for result in results
        if not _measures(result)
    ]


def _measures(result: Result) -> list[str]:
    """Returns the measures of the table: pass@1, avg@k, and pass@k for the same k only."""
    found = list(dict.fromkeys(key for metrics in result.sets.values() for key in metrics if _MEASURE.fullmatch(key)))
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
