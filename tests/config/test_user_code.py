"""Methods of plug-ins that a run calls besides their main one."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.config.resolve import call_with_options, load_file, resolve
from megatron_sspo.config.user_code import metrics_of
from megatron_sspo.data.load import load_rows
from megatron_sspo.environment.open import open_environment
from megatron_sspo.environment.protocol import open_episode
from megatron_sspo.errors import UserError
from megatron_sspo.objective import Correction, Penalties
from megatron_sspo.policy.forward_step import policy_loss
from megatron_sspo.processes.stop import Stop
from megatron_sspo.reward.protocol import checked_score
from megatron_sspo.rollout.embedded.episodes import Episodes
from megatron_sspo.run import Rollouts
from megatron_sspo.types import Prompt, Rollout

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
    opened = open_environment(Rollouts(environment=f"{path}:build"), max_prompt_tokens=8)
    with pytest.raises(UserError, match=r"own.py, line 2 .*OSError: in use"), opened:
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("set_default_dtype(torch.bfloat16)", "torch's default dtype from torch.float32 to torch.bfloat16, for the"),
        ("set_default_device('meta')", "torch's default device from cpu to meta, for the trainer too: let it call"),
    ],
)
@pytest.mark.parametrize("place", ["import torch\ntorch.{}\ndef reward(): ...", "import torch\ndef reward(): torch.{}"])
def test_a_part_that_changes_torch_for_the_whole_process(tmp_path, place, change, message):
    (tmp_path / "mine.py").write_text(place.format(change), encoding="utf-8")
    try:
        with pytest.raises(UserError, match=f"mine.py.* has changed {message}"):
            call_with_options(resolve("reward", f"{tmp_path}/mine.py:reward", "reward"), {}, "the reward 'mine.py'")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "place", ["import os\nos.chdir('/')\ndef reward(): ...", "import os\ndef reward(): os.chdir('/')"]
)
def test_a_part_that_changes_the_working_folder(tmp_path, monkeypatch, place):
    (tmp_path / "mine.py").write_text(place, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=rf"mine.py.* has changed the working folder from {tmp_path} to /, for the .*: "
    ):
        call_with_options(resolve("reward", "mine.py:reward", "reward"), {}, "the reward 'mine.py'")
    assert Path.cwd() == tmp_path


def leaving_rows():
    os.chdir("/")
    yield from ()


def test_calls_that_change_the_working_folder(tmp_path, monkeypatch):
    def leave(*_):
        os.chdir("/")
        return []

    monkeypatch.chdir(tmp_path)
    prompt = Prompt(id="a", tokens=(1,), answer="")
    part = SimpleNamespace(score=leave, open=leave, observe=leave, close=lambda: None)
    for call in (
        lambda: checked_score(part, [], []),
        lambda: open_episode(part, prompt),
        lambda: load_rows(f"{__file__}:leaving_rows", {}),
        lambda: policy_loss(leave, Penalties(), Correction(), scale=1.0)(MICROBATCH, *torch.zeros(2, 1)),
        lambda: Episodes(SimpleNamespace(open=lambda prompt: part), [prompt]).observe({0: ""}),
    ):
        with pytest.raises(UserError, match="has changed the working folder"):
            call()
        assert Path.cwd() == tmp_path


def test_a_call_that_changes_the_handler_of_a_stop_signal(tmp_path):
    def ignore(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return []

    checked_score(SimpleNamespace(score=ignore), [], [])  # no run has a handler
    stop = Stop(tmp_path)
    try:
        with pytest.raises(UserError, match="has changed the handler of SIGTERM, by which a run is asked to save and"):
            checked_score(SimpleNamespace(score=ignore), [], [])
        assert signal.getsignal(signal.SIGTERM) == stop._on_signal
    finally:
        stop.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


_FORKING = """
import os, sys
from megatron_sspo.config.user_code import call_user_code


def fork(end):
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return end()


print(*(call_user_code(lambda: fork(end), "the reward") for end in (int, lambda: sys.exit(3), lambda: 1 / 0)))
"""


def test_a_process_that_ones_own_code_forks_does_not_go_on_as_a_trainer():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _FORKING], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0 3 1\n" and done.stderr.count("ZeroDivisionError") == 1
