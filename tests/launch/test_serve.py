"""Errors of `megatron-sspo serve` before it starts a server."""

import sys

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.rollout.servers.process import find_python

RECIPE = "examples/tiny_moe.py"


PYTHON = f"rollouts.options.python={sys.executable}"


@pytest.mark.parametrize(
    ("key", "sets", "more", "message"),
    [
        ("", [], [], "MEGATRON_SSPO_SERVER_KEY is not set"),
        ("k", ["rollouts.options.servers=2"], [], "has no option servers"),
        ("k", ["model.path=/nowhere", PYTHON], [], "/nowhere is not a Hugging Face folder"),
        ("k", ["rollouts.options.python=/nowhere/python"], [], "there is no /nowhere/python"),
        ("k", [PYTHON], ["--address", "192.0.2.1"], "port 30000 of 192.0.2.1 is not free"),
        ("k", [PYTHON], ["--address", "0.0.0.0"], "'0.0.0.0' is all addresses of this machine"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, key, sets, more, message) -> None:
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", key)
    arguments = [argument for setting in sets for argument in ("--set", setting)]
    assert main(["serve", RECIPE, "--folder", str(tmp_path), *arguments, *more]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_interpreter_may_be_a_name_on_the_path(monkeypatch, tmp_path) -> None:
    (tmp_path / "python-of-image").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("python-of-image") == tmp_path / "python-of-image"
