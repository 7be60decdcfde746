"""The paper's seven settings end to end: the real recipe trains for two updates and is evaluated on its sets.

Models and numbers have a laptop's size (`run_recipes`); the rows are those of `tests/fixtures`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.run_recipes import family_of
from tests.rows import rows
from tests.selection import selected

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MATH, CODE = ["aime24", "aime25", "math-500"], ["codeact"]
SETS = {
    "qwen2_5_7b_math": ["gsm8k", "math-500", "aime25"],
    **{
        f"qwen3_{size}_{task}": sets
        for size in ("8b", "14b", "30b_a3b")
        for task, sets in (("math", MATH), ("code", CODE))
    },
}
# These show each family and each task; without their sizes, recipes of 14 billion parameters are those of 8 billion.
SHOWN = ("qwen2_5_7b_math", "qwen3_8b_code", "qwen3_30b_a3b_math")
RECIPES = [
    pytest.param(name, marks=[*[pytest.mark.long] * (name not in SHOWN), *[pytest.mark.bubblewrap] * ("code" in name)])
    for name in SETS
]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "MEGATRON_SSPO_DATA": str(ROOT / "tests" / "fixtures"),
    }
    chosen = selected(request.session, "recipe")
    program = ROOT / "tests" / "examples" / "run_recipes.py"
    command = [sys.executable, str(program), str(folder), *(name for name in SETS if name in chosen)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_setting_of_the_paper_runs_from_end_to_end(recipe: str, runs: Path) -> None:
    outcome = json.loads((runs / f"{recipe}.json").read_text())
    assert isinstance(outcome, dict), outcome
    run, config = runs / recipe, json.loads((runs / recipe / "config.json").read_text())
    assert (config["rollouts"]["group_size"], config["updates_per_sync"]) == (8, 2)
    assert config["parallel"]["expert"] == (2 if recipe == "qwen3_30b_a3b_math" else 1)
    assert json.loads((run / "model" / "config.json").read_text())["model_type"] == family_of(recipe)
    updates = rows(run / "metrics.jsonl")
    assert [row["update"] for row in updates] == [1, 2]
    assert all(row["reward/format"] > 0 for row in updates)
    assert any(row["policy/grad_norm"] > 0 for row in updates)
    if recipe.endswith("code"):
        assert updates[0]["environment/cells_per_episode"] > 0 and updates[0]["response/turns_mean"] > 1

    evaluations = rows(run / "evaluations.jsonl")
    assert [row["update"] for row in evaluations] == [0, 2]
    found = json.loads((runs / f"{recipe}-evaluation" / "results.json").read_text())["sets"]
    assert list(found) == SETS[recipe]
    assert any(found[name]["format_rate"] > 0 for name in found)
    for name, numbers in found.items():  # the model folder gives the same answers as the policy at the end of the run
        assert {key: evaluations[1][f"{name}/{key}"] for key in numbers if key != "title"} == {
            key: value for key, value in numbers.items() if key != "title"
        }
    head = (runs / f"{recipe}-evaluation" / "table.md").read_text().splitlines()[0]
    titles = {"gsm8k": "GSM8K", "math-500": "M500", "aime24": "A24", "aime25": "A25", "codeact": "CodeAct"}
    assert head == f"| Model | {' | '.join(titles[name] for name in SETS[recipe])} |"
