"""The page of verdicts: what the study's runs answer to each question of docs/study.md."""

from collections.abc import Mapping, Sequence

from examples.study.data import DENSE_SUMS, LONG_SUMS, PRETRAINED_SUMS, PRETRAINED_SUMS_ON_GPU, SUMS, Study
from examples.study.questions import (
    lengths,
    map,
    mechanism,
    mild,
    mixture,
    other_papers,
    pretrained,
    pretrained_on_gpu,
    rate_rules,
    search,
    staleness,
    temperatures,
)
from examples.study.text import Section, table

_QUESTIONS = (
    search,
    staleness,
    mechanism,
    temperatures,
    mild,
    lengths,
    mixture,
    map,
    other_papers,
    pretrained,
    pretrained_on_gpu,
    rate_rules,
)
_RECIPES = (SUMS, LONG_SUMS, DENSE_SUMS, PRETRAINED_SUMS, PRETRAINED_SUMS_ON_GPU)


def sections(study: Study) -> list[Section]:
    """Returns the answer to each question, in the order of the page."""
    return [question.section(study) for question in _QUESTIONS]


def page(study: Study, found: Sequence[Section], undrawn: Mapping[str, str], commit: str) -> str:
    """Returns the page in Markdown.

    Args:
        study: the results.
        found: the answers.
        undrawn: the figures that are not drawn, each with the reason.
        commit: of the clone that the runs were made from; "" if it is not known.
    """
    made = f"made at commit {commit}" if commit else "whose commit is not given (`--commit`)"
    parts = [
        "# Verdicts of the study",
        "Written by `make study-report` from `examples/study/results/`; the questions and definitions are those of "
        f"[study.md](../study.md). {len(study.results)} runs, {made}.",
        *_notes(study, undrawn),
        table(["question", "verdict"], [[section.title, section.verdict] for section in found]),
        *(str(section) for section in found),
    ]
    return "\n\n".join(parts) + "\n"


def _notes(study: Study, undrawn: Mapping[str, str]) -> list[str]:
    """Returns what is missing, so that a short table is not taken for the whole."""
    notes = []
    if study.missing:
        notes.append(f"Not run, or not collected: {', '.join(f'`{name}`' for name in study.missing)}.")
    if unknown := sorted({one.recipe for one in study.results} - set(_RECIPES)):
        notes.append(f"Left out, because no question is about them: the recipes {', '.join(unknown)}.")
    if undrawn:
        notes.append(
            "Figures that are not drawn:\n\n" + "\n".join(f"* `{name}`: {why}" for name, why in undrawn.items())
        )
    return notes
