"""The paper's recipes load, and have the paper's settings."""

from pathlib import Path

import pytest

from megatron_sspo.objective import AtanLog, sspo
from megatron_sspo.recipe import load_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"
PAPER = ["qwen3_30b_a3b_math", "qwen3_30b_a3b_code", "qwen3_8b_math", "qwen3_14b_math", "qwen2_5_7b_math"]


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize(("variant", "mu"), [("recipe", 2), ("stale", 4)])
def test_a_recipe_of_the_paper_has_the_papers_settings(name: str, variant: str, mu: int) -> None:
    run = load_recipe(f"{EXAMPLES / name}.py:{variant}")
    assert run.updates_per_sync == mu
    assert run.rollouts.group_size == 8
    acts = name.endswith("_code")
    assert run.rollouts.sampling.max_tokens == (2048 if acts else 512)
    assert (run.rollouts.environment, run.reward) == (("codeact", "codeact") if acts else ("", "math"))
    assert run.penalties.kl_coef == 0
    assert run.objective == sspo(AtanLog(tau_neg=0.3, tau_pos=0.2))
    assert run.parallel.expert == (8 if "a3b" in name else 1)
    assert run.name == name + ("-stale" if mu == 4 else "")


def test_every_recipe_file_loads_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {"distillation_curves", "plugin_own_loop", "nemo_run_qwen3_30b_a3b", "sevens", "trl_sspo", "verl_sspo"}
    monkeypatch.chdir(tmp_path)
    for name in {path.stem for path in EXAMPLES.glob("*.py")} - programs:
        run = load_recipe(str(EXAMPLES / f"{name}.py"))
        assert (run.lora is not None) == name.endswith("_lora")
