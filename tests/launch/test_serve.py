"""Errors of `megatron-sspo serve` before it starts a server."""

import sys

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.rollout.servers.process import find_python

RECIPE = "examples/tiny_moe.py"


PYTHON = f"rollouts.options.python={sys.executable}"


@pytest.mark.parametrize(
    ("key", "sets", "message"),
    [
        ("", [], "MEGATRON_SSPO_SERVER_KEY is not set"),
        ("a\nb", [PYTHON], "the servers' key has characters that an HTTP header cannot hold"),
        ("k\xe9", [PYTHON], "change MEGATRON_SSPO_SERVER_KEY"),
        ("k", ["rollouts.options.servers=2"], "has no option servers"),
        ("k", ["model.path=/nowhere", PYTHON], "/nowhere is not a Hugging Face folder"),
        ("k", ["rollouts.options.python=/nowhere/python"], "there is no /nowhere/python"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, key, sets, message) -> None:
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", key)
    arguments = [argument for setting in sets for argument in ("--set", setting)]
    assert_refused(tmp_path, capsys, arguments, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "0"], "--port is 0: with 2 servers it must be 1 to 65,534"),
        (["--port", "65535"], "--port is 65535: with 2 servers it must be 1 to 65,534"),
        (["--port", "-1"], "--port is -1"),
        (["--address", "192.0.2.1"], "port 30000 of 192.0.2.1 is not free"),
        (["--address", ""], "'' is all addresses of this machine, and clients need one of them: name one with"),
        (["--address", "0.0.0.0"], "'0.0.0.0' is all addresses of this machine"),
    ],
)
def test_ports_and_addresses_that_no_server_can_have(tmp_path, monkeypatch, capsys, arguments, message) -> None:
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", "k")
    sets = ["--set", PYTHON, "--set", "rollouts.options.num_servers=2"]
    assert_refused(tmp_path, capsys, [*sets, *arguments], message)


def assert_refused(folder, capsys, arguments: list[str], message: str) -> None:
    assert main(["serve", RECIPE, "--folder", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(folder.iterdir())


def test_an_interpreter_may_be_a_name_on_the_path(monkeypatch, tmp_path) -> None:
    (tmp_path / "python-of-image").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("python-of-image") == tmp_path / "python-of-image"
