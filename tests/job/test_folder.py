"""The folder of a new run, which another run may have used since the checks."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.job.job import Job
from megatron_sspo.run_folder.new import check_is_new


def test_a_run_that_has_begun_and_ended_since_the_checks_is_not_replaced(tmp_path):
    job = SimpleNamespace(folder=tmp_path, _is_new=True)
    with ExitStack() as stack:
        Job._lock(job, stack)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with (
        ExitStack() as stack,
        pytest.raises(UserError, match=r"already contains a run, which .*: continue it with --resume"),
    ):
        Job._lock(job, stack)
    job._is_new = False
    with ExitStack() as stack:
        Job._lock(job, stack)


@pytest.mark.parametrize("name", ["metrics.jsonl", "model", "curves.png"])
def test_files_of_somebody_else_are_not_overwritten(tmp_path, name):
    (tmp_path / "notes.txt").touch()
    check_is_new(tmp_path)
    (tmp_path / name).mkdir() if name == "model" else (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"already contains {name}, which a new run would replace: choose another"):
        check_is_new(tmp_path)
