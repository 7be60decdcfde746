"""Methods of plug-ins that a run calls besides their main one."""

from types import SimpleNamespace

import pytest
import torch

from megatron_sspo.config.resolve import call_with_options, load_file, resolve
from megatron_sspo.config.user_code import metrics_of
from megatron_sspo.errors import UserError


def test_metrics_are_numbers_by_name():
    found = metrics_of(SimpleNamespace(metrics=lambda: {"a": 1, "b": torch.tensor(0.5)}), "the reward")
    assert found == {"a": 1, "b": 0.5} and type(found["b"]) is float
    assert metrics_of(SimpleNamespace(), "the reward") == metrics_of(None, "the environment") == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "the reward's metrics returned None ("),
        ("return {'a': 'x'}", "the reward's metrics returned {'a': 'x'} (could not convert string to float: 'x'): it"),
        ("raise KeyError('z')", "own.py, line 2 (`raise KeyError('z')`): KeyError: 'z'"),
    ],
)
def test_metrics_of_ones_own_that_are_wrong(tmp_path, body, message):
    path = tmp_path / "own.py"
    path.write_text(f"def metrics():\n    {body}\n")
    with pytest.raises(UserError) as caught:
        metrics_of(load_file(path), "the reward")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("torch.set_default_dtype(torch.bfloat16)", "torch's default dtype to torch.bfloat16, for the trainer too"),
        ("torch.set_default_device('meta')", "torch's default device to meta, for the trainer too: let it restore"),
        ("os.chdir('/')", "the working folder to /, for the trainer too: let it restore"),
    ],
)
@pytest.mark.parametrize("place", ["import os, torch\n{}\ndef reward(): ...", "import os, torch\ndef reward(): {}"])
def test_a_part_that_changes_the_whole_process(tmp_path, monkeypatch, default_dtype, place, change, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(place.format(change), encoding="utf-8")
    with pytest.raises(UserError, match=f"mine.py.* has changed {message}"):
        call_with_options(resolve("reward", f"{tmp_path}/mine.py:reward", "reward"), {}, "the reward 'mine.py'")
