"""Valid values, and what they are converted to."""

from pathlib import Path
from types import MappingProxyType

import numpy
import pytest

from megatron_sspo.objective import Sums, sspo
from megatron_sspo.recipe import load_recipe
from tests.config.recipes import write

GOOD = {
    "num_updates=numpy.int64(3)": 3,
    "num_updates=Number.ONE": 1,
    "distributed_timeout=5": 5.0,
    "distributed_timeout=numpy.float32(7.5)": 7.5,
    "name=Text.A": "A",
    "name='größe 2'": "größe 2",
    "output=Path('runs')": "runs",
    "output='~/runs'": str(Path.home() / "runs"),
    "output='~'": str(Path.home()),
    "output='a~/runs'": "a~/runs",
    "reward_options=types.MappingProxyType({'exact': True})": {"exact": True},
    "reward_options={'a': [1, (2.5, None)], 'b': Path('x')}": {"a": [1, (2.5, None)], "b": Path("x")},
    "warm_start=None": None,
    "seed=0": 0,
}


@pytest.mark.parametrize(("fields", "value"), GOOD.items(), ids=GOOD)
def test_a_value_becomes_one_of_its_fields_type(tmp_path, fields, value) -> None:
    found = getattr(load_recipe(str(write(tmp_path, fields))), fields.partition("=")[0])
    assert found == value
    assert type(found) is type(value)
    assert not isinstance(found, (numpy.generic, MappingProxyType))


def test_an_objective_of_ones_own(tmp_path) -> None:
    path = write(tmp_path, "objective=mine")
    path.write_text(
        path.read_text() + "\n\ndef mine(log_probs, old_log_probs, advantages, segments):\n"
        "    return sspo()(log_probs, old_log_probs, advantages, segments)\n"
    )
    run = load_recipe(str(path))
    assert getattr(run.objective, "__name__", "") == "mine"
    assert Sums and sspo() != run.objective


def test_a_class_derived_from_run_becomes_a_run(tmp_path) -> None:
    path = write(tmp_path, "")
    path.write_text(path.read_text().replace("return Run(", "return Mine(") + "\n\nclass Mine(Run):\n    pass\n")
    run = load_recipe(str(path))
    assert type(run).__name__ == "Run" and run.name == "a"
