"""The folder of a new run, which another run may have used since the checks."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.job.job import Job
from megatron_sspo.job.training import Training
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


def test_a_model_that_is_a_link_is_replaced_again_and_again(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(tmp_path / "elsewhere")
    training = MagicMock(_folder=tmp_path / "run")
    training.policy.export = Path.mkdir
    for _ in range(2):
        assert Training.export(training) == tmp_path / "run" / "model"
        assert [(path.name, path.is_symlink()) for path in (tmp_path / "run").iterdir()] == [("model", False)]
    assert (tmp_path / "elsewhere").is_dir()


@pytest.mark.parametrize("name", ["metrics.jsonl", "model", "curves.png"])
def test_files_of_somebody_else_are_not_overwritten(tmp_path, name):
    (tmp_path / "notes.txt").touch()
    check_is_new(tmp_path)
    (tmp_path / name).mkdir() if name == "model" else (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"already contains {name}, which a new run would replace: choose another"):
        check_is_new(tmp_path)
