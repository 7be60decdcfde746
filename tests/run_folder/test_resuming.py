"""The lines about a configuration that differs from that of the checkpoint."""

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.run_folder.resuming import changes_of_resumed


def test_a_warm_start_that_is_added_is_not_carried_out() -> None:
    before = {"warm_start": None, "num_updates": 3}
    lines = changes_of_resumed(before, {"warm_start": {"updates": 2}, "num_updates": 4})
    assert lines[0].startswith("warm_start") and lines[0].endswith("; a run that is resumed has no warm start any more")
    assert lines[1:] == ["num_updates is 4, and was 3"]


@pytest.mark.parametrize("size", [None, "2", [2]])
def test_a_layout_of_another_program_is_refused(size: object) -> None:
    with pytest.raises(UserError, match="the layout that the checkpoint was written in cannot be read"):
        changes_of_resumed({"parallel": {"tensor": size}}, {"parallel": {"tensor": 1}})
