"""The study's recipes: their tasks, models and warm starts (docs/study.md)."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from examples.study import recipes
from examples.study.grid import PRETRAINED_RATE, SWEEPS
from examples.study.long_sums import demonstrate, rows
from megatron_sspo.data.open import prompt_stream
from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.recipe import load_recipe
from megatron_sspo.reward.math import reward
from megatron_sspo.run import check
from megatron_sspo.types import Prompt

NAMES = sorted({sweep.recipe for sweep in SWEEPS.values() if sweep.warm_start})
EQUATION = re.compile(r"(\d[+\d]*)=(\d+)")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_and_its_warm_start(name) -> None:
    """Recipes differ from `sums` in the task or the model only."""
    run, start, sums = check(getattr(recipes, name)()), check(getattr(recipes, f"warm_{name}")()), recipes.sums()
    assert run.warm_start is None and start.warm_start is not None
    assert run.model == start.model and run.parallel.num_processes == 1
    assert run.evaluation == start.evaluation and run.prompts == start.prompts
    task = {"prompts": sums.prompts, "rollouts": sums.rollouts, "evaluation": sums.evaluation}
    changed = {"long_sums": task, "dense_sums": {"model": sums.model}}.get(name, {})
    assert replace(getattr(recipes, name)(), name="sums", **changed) == sums


def test_the_pretrained_model_has_the_recipe_of_its_example() -> None:
    run = check(recipes.pretrained_sums())
    example = load_recipe("examples/smollm2_arithmetic.py")
    assert run.evaluation is not None and example.evaluation is not None
    assert run.parallel.num_processes == 1 and run.warm_start is None
    assert run.optimizer == example.optimizer and run.optimizer.lr == PRETRAINED_RATE
    assert (run.prompts, run.rollouts, run.model) == (example.prompts, example.rollouts, example.model)
    assert run.evaluation.sets["additions"] == example.evaluation.sets["sums"]
    assert run.num_updates % 8 == 0 and run.evaluation.every == 8  # after the last update of each cycle


# --- long sums


def test_a_demonstration_goes_on_with_its_slip() -> None:
    assert demonstrate((17, 25, 90), slip=1) == (
        "<think>17+25 7+5=12 1+2=3, 32+90 2+0=2 3+9=12</think> <answer>122</answer>"
    )
    assert demonstrate((17, 25, 90), slip=2) == (
        "<think>17+25 7+5=12 1+2+1=4, 42+90 2+0=2 4+9=13</think> <answer>32</answer>"
    )


def test_demonstrations_are_right_but_for_their_share_of_slips() -> None:
    """And every step of a right one is true."""
    found = rows(size=400, wrong_fraction=0.5)
    pairs = [(Prompt(id=row.id, tokens=(), answer=row.answer), row.demonstration) for row in found]
    scores = reward(exact=True).score([prompt for prompt, _ in pairs], [text for _, text in pairs])
    assert all(score["format"] == 1 for score in scores)
    assert sum(score["answer"] for score in scores) == 200
    for row in rows(size=200):
        operands = row.question.removesuffix("=").split("+")
        assert int(row.answer) == sum(map(int, operands))
        for terms, total in EQUATION.findall(row.demonstration):
            assert sum(map(int, terms.split("+"))) == int(total)
        firsts = re.findall(r"(?:<think>|, )(\d+)\+(\d+)", row.demonstration)
        assert [second for _, second in firsts] == operands[1:]


def test_responses_are_long_and_fit() -> None:
    """Demonstrations have 60 to 150 tokens of the model's vocabulary, the end included."""
    run = recipes.warm_long_sums()
    assert run.warm_start is not None
    tokenizer = load_tokenizer(Path(run.model.path))
    prompt_stream(run.warm_start.prompts, tokenizer, seed=0, shuffle=False)  # refuses a prompt that is too long
    lengths = []
    for row in rows(size=2000):
        tokens = tokenizer.encode(row.demonstration)
        assert tokenizer.unk_token_id not in tokens
        lengths.append(len(tokens) + 1)
    assert min(lengths) >= 60 and max(lengths) <= 125 < run.rollouts.sampling.max_tokens <= 150
