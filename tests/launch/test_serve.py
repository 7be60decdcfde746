"""Errors of `megatron-sspo serve` before it starts a server."""

import sys

import pytest

from megatron_sspo.__main__ import main

RECIPE = "examples/tiny_moe.py"


@pytest.mark.parametrize(
    ("key", "sets", "message"),
    [
        ("", [], "MEGATRON_SSPO_SERVER_KEY is not set"),
        ("k", ["rollouts.options.servers=2"], "has no option servers"),
        (
            "k",
            ["model.path=/nowhere", f"rollouts.options.python={sys.executable}"],
            "/nowhere is not a Hugging Face folder",
        ),
        ("k", ["rollouts.options.python=/nowhere/python"], "there is no /nowhere/python"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, key, sets, message) -> None:
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", key)
    arguments = [argument for setting in sets for argument in ("--set", setting)]
    assert main(["serve", RECIPE, "--folder", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
