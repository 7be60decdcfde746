"""The recipes of adapters load from any folder."""

from pathlib import Path

import pytest

from megatron_sspo.recipe import load_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["tiny_moe_lora", "qwen3_30b_a3b_lora"])
def test_it_loads_from_another_folder(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = load_recipe(str(EXAMPLES / f"{name}.py"))
    assert run.lora is not None and set(run.lora.targets) == {"attention", "experts"}
