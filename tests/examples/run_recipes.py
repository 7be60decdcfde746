"""Trains each named recipe and evaluates the result, all in one process, because starting a process takes long.

python tests/examples/run_recipes.py FOLDER [RECIPE ...]
"""

import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.__main__ import main
from megatron_sspo.data.open import prompt_stream
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.evaluation.sets import held_out_streams
from megatron_sspo.recipe import load_recipe
from megatron_sspo.types import Prompt
from tests.examples import tiny_paper_models
from tests.rows import sets

EXAMPLES = Path(__file__).parents[2] / "examples"
# Overrides of everything that is too large for a laptop. Data, reward, objective, evaluation etc. are the recipe's.
_SMALL = {
    "model.dtype": "float32",
    "parallel.data": "1",
    "parallel.tensor": "1",
    "parallel.expert": "1",
    "parallel.sequence": "false",
    "rollouts.engine": "embedded",
    "rollouts.prompts_per_update": "1",
    "rollouts.sampling.max_tokens": "80",
    "num_updates": "2",
}


def family_of(recipe: str) -> str:
    """Returns the family of the recipe's model."""
    return "qwen2" if recipe.startswith("qwen2") else "qwen3_moe" if "a3b" in recipe else "qwen3"


def model_for(recipe: str, folder: Path) -> Path:
    """Returns a model of the recipe's family that is taught its prompts; recipes of a family and task share it."""
    task = recipe.rsplit("_", 1)[-1]
    path = folder / f"{family_of(recipe)}-{task}"
    if not path.exists():
        tokenizer = tiny_paper_models.build(family_of(recipe), path)
        settings = load_recipe(str(EXAMPLES / f"{recipe}.py"))
        stream = prompt_stream(settings.prompts, tokenizer, seed=0, shuffle=False)
        streams = [stream, *held_out_streams(settings, tokenizer).values()]
        prompts = [prompt for stream in streams for prompt in stream.prompts]
        lesson = [pair for prompt in prompts for pair in turns(prompt, task, tokenizer)]
        loss = tiny_paper_models.teach(path, lesson)
        print(f"{path.name}: loss {loss:.3f}", flush=True)
    return path


def turns(prompt: Prompt, task: str, tokenizer: Any) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Returns pairs of context and turn: a response to a prompt and, if programs are run, to their output."""
    if task == "math":
        return [(prompt.tokens, encode(tokenizer, f"<think> a </think> <answer> {prompt.answer} </answer><|im_end|>"))]
    act = encode(tokenizer, f"<think> a </think> <execute> print({prompt.answer!r}) </execute>")
    observation = f"Observation:\n{prompt.answer or '[nothing was printed]'}"
    observed = TurnTemplate(tokenizer).observation_tokens(act, observation)
    solve = encode(tokenizer, f"<think> b </think> <solution> {prompt.answer} </solution>")
    return [(prompt.tokens, act), ((*prompt.tokens, *act, *observed), solve)]


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def run(recipe: str, folder: Path) -> dict[str, float]:
    """Runs a recipe; returns the seconds of teaching, training and evaluation."""
    begun = time.perf_counter()
    changes = {**_SMALL, "model.path": model_for(recipe, folder), "output": folder}
    if recipe.endswith("code"):
        changes |= {"rollouts.sampling.max_tokens": "160", "evaluation.sets.codeact.max_tokens": "160"}
        changes |= {"rollouts.environment_options.max_turns": "3"}
    if "a3b_math" in recipe:  # one recipe keeps its own layout: experts sharded over processes
        changes |= {"parallel.data": "2", "parallel.expert": "2"}
    options = sets(*(f"{name}={value}" for name, value in changes.items()))
    path = str(EXAMPLES / f"{recipe}.py")
    started = time.perf_counter()
    assert main(["train", path, *options]) == 0
    trained = time.perf_counter()
    output = folder / f"{recipe}-evaluation"
    assert main(["evaluate", str(folder / recipe), "--recipe", path, *options, "--output", str(output)]) == 0
    return {"teach": started - begun, "train": trained - started, "evaluate": time.perf_counter() - trained}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        try:
            found: object = run(name, folder)
        except BaseException:
            found = traceback.format_exc()
        (folder / f"{name}.json").write_text(json.dumps(found))
