"""The fields of ours that docs/coming_from.md names exist."""

import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from megatron_sspo.config.overrides import override
from megatron_sspo.recipe import load_recipe
from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.run import Run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
# the first column of each table but that of sizes
CELLS = [row.split(" | ")[0] for row in re.findall(r"^\| (.+) \|$", TEXT.partition("## Objective")[2], re.MULTILINE)]
NAMES = sorted({name for cell in CELLS for name in re.findall(r"`([a-z]\w*(?:\.\w+)*)(?:=[^`]*)?`", cell)})


def field(found: Any, name: str) -> Any:
    """Returns the type of a dataclass's field."""
    (kind,) = [part for part in (found, *typing.get_args(found)) if dataclasses.is_dataclass(part)]
    return typing.get_type_hints(kind)[name]


@pytest.mark.parametrize("name", [name for name in NAMES if "." in name])
def test_fields(name: str) -> None:
    if name.startswith("rollouts.options."):
        assert name.rpartition(".")[2] in {f.name for f in dataclasses.fields(Options)}
        return
    found: Any = Run
    for part in name.split("."):
        found = field(found, part)


def test_fields_of_the_run_itself() -> None:
    known = {f.name for f in dataclasses.fields(Run)}
    others = {"k1", "tp_size", "mem_fraction_static", "question", "answer", "R3", "gmpo"}
    assert {name for name in NAMES if "." not in name} <= known | others


def test_the_values_are_accepted() -> None:
    run = load_recipe(str(ROOT / "examples" / "tiny_moe.py"))
    values = re.findall(
        r"^\| `((?:objective|advantage|correction\.mode|routing_replay|rollouts\.engine)=[^`]*)`", TEXT, re.M
    )
    assert len(values) >= 10
    for value in values:
        override(run, [value])
