"""The lines about a configuration that differs from that of the checkpoint."""

from megatron_sspo.run_folder.resuming import changes_of_resumed


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
