"""Recipes with one wrong value each, and the commands that have to report it."""

from pathlib import Path

import pytest

from megatron_sspo.__main__ import main

MODEL = Path(__file__).parents[2] / "examples" / "tiny_moe"

HEAD = f"""
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy, torch

from megatron_sspo.objective import *
from megatron_sspo.types import Endpoint, Sampling
from megatron_sspo.run import *

PROMPTS = Prompts(source="arithmetic", options={{"size": 8}}, template="{{question}}", max_tokens=16)


def run(**fields):
    usual = dict(
        name="a",
        model=Model(path="{MODEL}", init="random", dtype="float32"),
        prompts=PROMPTS,
        num_updates=1,
        check_memory=False,
    )
    return Run(**(usual | fields))


def held_out(prompts=PROMPTS, name="a", **fields):
    return Evaluation(sets={{name: HeldOut(prompts=prompts, **fields)}})


def warm_start(**fields):
    return WarmStart(**(dict(prompts=PROMPTS, updates=1, batch_size=1, optimizer=Optimizer()) | fields))


def recipe():
    return run({{fields}})
"""

COMMANDS = (["train"], ["launch", "--check"], ["launch", "--dry-run"])


def write(folder: Path, fields: str) -> Path:
    """Writes a recipe with these arguments of its Run."""
    path = folder / "recipe.py"
    path.write_text(HEAD.replace("{fields}", fields))
    return path


def sentence(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """Returns the error of every command for a recipe: one line, with exit code 2."""
    found = set()
    for command, *options in COMMANDS:
        assert main([command, str(path), "--set", f"output={path.parent / 'runs'}", *options, *more]) == 2
        found.add(capsys.readouterr().err)
    assert len(found) == 1, found
    (message,) = found
    assert message.startswith("megatron-sspo: ") and message.count("\n") == 1 and message[:-1].isprintable(), message
    assert "Traceback" not in message and "/megatron_sspo/" not in message.replace(str(MODEL.parents[1]), "")
    assert not (path.parent / "runs").exists()
    return message.removeprefix("megatron-sspo: ").rstrip("\n")
