"""Methods of plug-ins that a run calls besides their main one."""

import math
from types import SimpleNamespace

import pytest
import torch

from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.config.resolve import call_with_options, load_file, resolve
from megatron_sspo.config.user_code import metrics_of
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.open_episodes import open_episodes
from megatron_sspo.run import Rollouts
from megatron_sspo.types import Rollout

ROLLOUT = Rollout(
    tokens=(3,), rollout_log_probs=(-1.0,), text="", finish_reason="stop", policy_version=0, advantage=2.0
)
MICROBATCH = make_microbatch([((1,), ROLLOUT)])


def test_metrics_are_numbers_by_name():
    found = metrics_of(SimpleNamespace(metrics=lambda: {"a": 1, "b": torch.tensor(0.5)}), "the reward")
    assert found == {"a": 1, "b": 0.5} and type(found["b"]) is float
    assert metrics_of(SimpleNamespace(), "the reward") == metrics_of(None, "the environment") == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "the reward's metrics returned None: it must return a dict of numbers by name"),
        ("return {1: 2.0}", "the reward's metrics returned {1: 2.0}: it must return a dict of numbers by name"),
        ("return {'a': 'x'}", "the reward's metrics returned {'a': 'x'}: could not convert string to float: 'x'"),
        ("return {'a': None}", "the reward's metrics returned {'a': None}: "),
        ("raise KeyError('z')", "own.py, line 2 (`raise KeyError('z')`): KeyError: 'z'"),
    ],
)
def test_metrics_of_ones_own_that_are_wrong(tmp_path, body, message):
    path = tmp_path / "own.py"
    path.write_text(f"def metrics():\n    {body}\n")
    with pytest.raises(UserError) as caught:
        metrics_of(load_file(path), "the reward")
    assert message in str(caught.value)


def test_metrics_that_need_an_argument():
    with pytest.raises(UserError, match="the reward's metrics cannot be called as it has to be: "):
        metrics_of(SimpleNamespace(metrics=math.dist), "the reward")


def test_an_environment_that_cannot_be_closed(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "from types import SimpleNamespace\n"
        "def close(): raise OSError('in use')\n"
        "def build():\n"
        "    return SimpleNamespace(stop=(), max_episodes=1, open=lambda prompt: 0, metrics=dict, close=close)\n"
    )
    opened = open_episodes(Rollouts(environment=f"{path}:build"), max_prompt_tokens=8)
    with pytest.raises(UserError, match=r"own.py, line 2 .*OSError: in use"), opened:
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("torch.set_default_dtype(torch.bfloat16)", "torch's default dtype from torch.float32 to torch.bfloat16, for"),
        ("torch.set_default_device('meta')", "torch's default device from cpu to meta, for the trainer too: let it"),
        ("os.chdir('/')", "the working folder from .* to /, for the trainer too: let it restore"),
    ],
)
@pytest.mark.parametrize("place", ["import os, torch\n{}\ndef reward(): ...", "import os, torch\ndef reward(): {}"])
def test_a_part_that_changes_the_whole_process(tmp_path, monkeypatch, place, change, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(place.format(change), encoding="utf-8")
    try:
        with pytest.raises(UserError, match=f"mine.py.* has changed {message}"):
            call_with_options(resolve("reward", f"{tmp_path}/mine.py:reward", "reward"), {}, "the reward 'mine.py'")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
