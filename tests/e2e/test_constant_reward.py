"""Runs that learn nothing say why, once, with a response as the model wrote it; the first example run says nothing."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PLUGINS = Path(__file__).with_name("plugins.py")
CAUSES = ("every response is empty", "has the reward 0.5: the reward does not tell them apart")


@pytest.mark.parametrize("cause", CAUSES)
def test_a_run_that_learns_nothing_says_why(workshop, cause) -> None:
    settings = [f"reward={PLUGINS}:constant", "num_updates=6"]
    config = workshop.folder / "config"
    if "empty" in cause:  # every token ends a response
        vocab_size = json.loads((config / "config.json").read_text())["vocab_size"]
        (config / "generation_config.json").write_text(json.dumps({"eos_token_id": [*range(vocab_size)]}))
    done = workshop.run("train", f"{workshop.recipe}:bare", *(word for each in settings for word in ("--set", each)))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "so nothing is learned" in line]
    assert cause in line and "as the model wrote it" in line, line
    assert "update 4 " in done.stdout.partition(line)[2], "before the end of the second cycle is shown"


def test_the_first_example_run_learns(workshop) -> None:
    settings = ["--set", "num_updates=4", "--set", "evaluation=none", "--set", f"output={workshop.folder}"]
    done = workshop.run("train", "examples/tiny_moe.py", *settings)
    assert done.returncode == 0, done.stderr
    assert "nothing is learned" not in done.stdout
