"""The lines about a configuration that differs from that of the checkpoint."""

from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.objective import erc, sspo
from megatron_sspo.run import Model, Prompts, Run
from megatron_sspo.run_folder.resuming import _check_batches, changes_of_resumed
from megatron_sspo.types import Prompt, Rollout, RolloutGroup


def test_a_warm_start_that_is_added_is_not_carried_out() -> None:
    before = {"warm_start": None, "num_updates": 3}
    lines = changes_of_resumed(before, {"warm_start": {"updates": 2}, "num_updates": 4}, batches_left=1)
    assert lines[0].startswith("warm_start") and lines[0].endswith("; a run that is resumed has no warm start any more")
    assert lines[1:] == ["num_updates is 4, and was 3"]


def test_values_that_act_from_the_next_cycle_on() -> None:
    before = {"advantage": "group_relative", "rollouts": {"group_size": 4}, "seed": 0}
    now = {"advantage": "dr_grpo", "rollouts": {"group_size": 8}, "seed": 1}
    lines = changes_of_resumed(before, now, batches_left=2)
    later = "; the checkpoint has the rollouts of 2 more updates, which were made with the former value"
    assert [line.endswith(later) for line in lines] == [True, True, False]
    assert not any(later in line for line in changes_of_resumed(before, now, batches_left=0))


@pytest.mark.parametrize("size", [None, "2", [2]])
def test_a_layout_of_another_program_is_refused(size: object) -> None:
    with pytest.raises(UserError, match="the layout that the checkpoint was written in cannot be read"):
        changes_of_resumed({"parallel": {"tensor": size}}, {"parallel": {"tensor": 1}}, batches_left=0)


def test_batches_of_a_cycle_that_was_begun_for_an_objective_without_entropies() -> None:
    rollout = Rollout(tokens=[1], rollout_log_probs=[-1.0], text="", finish_reason="stop", policy_version=0)
    batches = [[RolloutGroup(prompt=Prompt(id="a", tokens=(1,), answer=""), rollouts=[rollout])]]
    runs = [
        Run(name="x", model=Model(path="x"), prompts=Prompts(source="x"), num_updates=1, objective=objective)
        for objective in (sspo(), erc())
    ]
    _check_batches(runs[0], batches, Path("x"))
    _check_batches(runs[1], [], Path("x"))
    with pytest.raises(UserError, match=r"^objective needs old_entropy, and x has 1 batch without it, of a cycle"):
        _check_batches(runs[1], batches, Path("x"))
