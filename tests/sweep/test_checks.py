"""The checks of a sweep before its first run starts."""

import pytest

from megatron_sspo.__main__ import main
from tests.config.recipes import write


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (
            "advantage=[group_relative, leave_one_in]",
            "the run advantage=leave_one_in,seed=0: there is no advantage named",
        ),
        ("rollouts.group_size=[2, 4, 8]", "the run rollouts.group_size=8,seed=0: "),
        ("objective=[sspo(), gspo()]", "r.py:advantage' cannot be computed for 2 numbers"),
    ],
)
def test_each_value_is_checked_before_the_first_run_starts(tmp_path, capsys, vary, message) -> None:
    most = 4 if "group_size" in vary else 1
    (tmp_path / "r.py").write_text(
        f"def advantage(rewards):\n    assert len(rewards) <= {most}\n    return rewards - rewards.mean()\n"
    )
    own = "" if vary.startswith("advantage") else f"advantage='{tmp_path}/r.py:advantage', "
    path = write(tmp_path, f"{own}rollouts=Rollouts(group_size=2)")
    assert main(["sweep", str(path), "--vary", vary, "--seeds=2", f"--output={tmp_path / 'sweep'}"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert error.startswith("megatron-sspo: the run ") == ("objective" not in vary)
    assert {file.name for file in tmp_path.glob("sweep/*")} <= {".run.lock"}
