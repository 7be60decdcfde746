"""The pages of objectives: each row has one, and the page builds what the code builds."""

import re
from pathlib import Path

import pytest

from megatron_sspo import objective
from megatron_sspo.objective import Correction, SequenceObjective
from megatron_sspo.objective.zoo import rows
from tools.objective_figures import objective_of

PAGES = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "docs" / "objectives").glob("*.md")}
SHARED = {"dppo_tv": "dppo", "dppo_kl": "dppo", "gmpo_wide": "gmpo", "vespo_documented": "vespo"}
ADVANTAGES = ["max_rl", "opo", "gdpo", "reinforce_plus_plus"]
OBJECTIVES = ["sspo", "pessimistic", "grpo", "gspo", "gmpo", "sapo"]
ROWS = [
    name for name, value in vars(rows).items() if callable(value) and getattr(value, "__module__", "") == rows.__name__
]
MADE = [(page, number) for page, text in PAGES.items() for number in range(text.count("`SequenceObjective("))]


def test_each_has_a_page_with_the_line_that_chooses_it() -> None:
    names = (*OBJECTIVES, *ROWS, *ADVANTAGES)
    texts = {name: PAGES[SHARED.get(name, name)] for name in names}
    assert [name for name, text in texts.items() if f"={name}" not in text and f"{name.title()}(" not in text] == []
    assert set(PAGES) == {SHARED.get(name, name) for name in names}


@pytest.mark.parametrize(("page", "number"), MADE, ids=[f"{page}-{number}" for page, number in MADE])
def test_the_parts_on_a_page_are_the_defaults(page: str, number: int) -> None:
    written = re.findall(r"`(SequenceObjective\([^`]*)`", PAGES[page])[number]
    names = [name for name in (*OBJECTIVES, *ROWS) if SHARED.get(name, name) == page]
    made = eval(written.replace("OverLength(4096)", "OverLength(1.0)"), vars(objective) | vars(rows))
    assert isinstance(made, SequenceObjective)
    assert made == objective_of(names[number])


@pytest.mark.parametrize("page", ["icepop", "kpop"])
def test_the_parts_of_a_correction_are_the_defaults(page: str) -> None:
    written = re.findall(r"`(Correction\([^`]*)`", PAGES[page])[0]
    assert eval(written, {"Correction": Correction}) == getattr(objective, page)()
