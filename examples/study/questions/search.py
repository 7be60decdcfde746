"""The choice of lr*: the learning rate with the largest mean area under pass@1, on-policy."""

from examples.study.comparisons import NOT_RUN
from examples.study.data import SEARCH, SUMS, Study, same_rate
from examples.study.grid import BEYOND
from examples.study.statistics import mean
from examples.study.text import Section, interval, table

TITLE = "Search: lr*"
_MULTIPLES = (1 / 3, 1, 3)


def section(study: Study) -> Section:
    """Returns the areas by learning rate and the chosen one, a table for each recipe."""
    recipes = list(dict.fromkeys(one.recipe for one in study.results)) or [SUMS]
    searched = [recipe for recipe in recipes if study.areas_by_rate(recipe)]
    if not searched:
        return Section(title=TITLE, verdict=NOT_RUN, body=[_without_search(study)])
    body = []
    for recipe in searched:
        rows = [
            [recipe, f"{rate:.3g}", interval(mean(areas), digits=3), str(len(areas))]
            for rate, areas in study.areas_by_rate(recipe).items()
        ]
        body.append(table(["recipe", "learning rate", "area (95 %)", "seeds"], rows))
    body += [sentence for recipe in recipes for sentence in (_at_an_end(study, recipe), _other_rates(study, recipe))]
    verdict = ", ".join(f"lr* = {study.base_rates[recipe]:.3g} ({recipe})" for recipe in searched)
    return Section(title=TITLE, verdict=verdict, body=[part for part in body if part])


def _without_search(study: Study) -> str:
    known = ", ".join(f"{rate:.3g} ({recipe})" for recipe, rate in study.base_rates.items())
    return f"lr\\* is taken from the other runs' rows: {known}." if known else "There are no runs."


def _at_an_end(study: Study, recipe: str) -> str:
    rates = list(study.areas_by_rate(recipe))
    chosen = study.base_rates.get(recipe)
    if chosen is None or chosen not in rates[:1] + rates[-1:]:
        return ""
    end = f"lr\\* = {chosen:.3g} of {recipe} is at an end of the list"
    if any(same_rate(chosen, added) for added in BEYOND.values()):
        return f"{end}, which was extended once: what is beyond it was not searched."
    return f"{end}: the list has to be extended by one value."


def _other_rates(study: Study, recipe: str) -> str:
    """Returns a sentence if runs have a learning rate that is no multiple of a search's lr*: they are in no cell."""
    base = study.base_rates.get(recipe)
    if base is None or not study.areas_by_rate(recipe):
        return ""
    used = {one.lr for one in study.results if one.recipe == recipe and not one.sweep.startswith(SEARCH)}
    strange = sorted(rate for rate in used if not any(same_rate(rate, base * factor) for factor in _MULTIPLES))
    if not strange:
        return ""
    named = ", ".join(f"{rate:.3g}" for rate in strange)
    remedy = "set `BASE_RATE` in `grid.py` to lr\\*, and run them again" if recipe == SUMS else "run its sweep again"
    return (
        f"Runs of {recipe} at the learning rates {named} are left out, because these are not lr\\*/3, lr\\* or 3 "
        f"lr\\*: {remedy}."
    )
