"""The command of the first hour on GPUs: wrong environments, limits of time, and what is not run again."""

import argparse
import importlib.util
import json
import os
import sys

import pytest
import torch

from tests.gpu import first_hour
from tests.gpu.first_hour import PARTS, Part, measure, read, wrong


@pytest.mark.parametrize(
    ("missing", "gpus", "release", "host", "said"),
    [
        ("torch", 1, (2, 30), "", "has no torch"),
        ("", 0, (2, 30), "", "sees no GPU"),
        ("isal", 1, (2, 30), "", "packages are missing: isal; put their wheels"),
        ("", 1, (2, 28, 9), "node", "NCCL 2.28.9 takes several ranks on one GPU only with an NCCL_HOSTID for each"),
        ("", 1, (2, 30), "node", ""),
        ("", 1, (2, 28, 9), "", ""),
    ],
)
def test_a_wrong_environment_is_named_in_a_sentence(monkeypatch, missing, gpus, release, host, said):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: release)
    if host:
        monkeypatch.setenv("NCCL_HOSTID", host)
    message = wrong("cuda")
    assert said in message and bool(said) == bool(message) and "\n" not in message


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Two parts, one of which would take an hour, and the options of a call."""
    passes = (str(tmp_path / "passes.py"),)
    (tmp_path / "passes.py").write_text(f"open({str(tmp_path / 'calls')!r}, 'a').write('x')")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(3600)")
    parts = {"passes": Part(60, program=passes), "hangs": Part(0.2, program=(str(tmp_path / "hangs.py"),))}
    monkeypatch.setattr(first_hour, "PARTS", parts)
    monkeypatch.setattr(first_hour, "FEWEST_SECONDS", 0.0)
    return argparse.Namespace(json=tmp_path / "found.json", device="cpu", ranks=4, minutes=1.0, only=None, trl="")


def test_a_part_ends_in_its_time_and_what_has_passed_is_not_run_again(options, capsys):
    measure(options, [])
    ended = {name: row["ended"] for name, row in read(options.json)["parts"].items()}
    assert ended == {"passes": "passed", "hangs": "not done in 2 s"}
    measure(options, [])
    assert (options.json.parent / "calls").read_text() == "x"
    assert first_hour.report(read(options.json)) == 1 and "| hangs |" in capsys.readouterr().out
    options.minutes = -1.0
    measure(options, [])
    assert "hangs: not begun, because -1 minutes are over" in capsys.readouterr().out


def test_a_test_that_has_passed_is_left_out_of_the_next_call(tmp_path):
    file = tmp_path / "test_it.py"
    file.write_text(
        "def test_one(record_property):\n    record_property('error', 0.5)\ndef test_two():\n    assert 0\n"
    )
    program = (
        "import sys, pytest; from pathlib import Path; from tests.gpu.first_hour import Recorder;"
        "pytest.main([sys.argv[1], '-p', 'no:cacheprovider'], plugins=[Recorder(Path(sys.argv[2]))])"
    )
    outcomes = []
    for _ in range(2):
        path = tmp_path / "found.json"
        environment = os.environ | {"PYTHONPATH": str(first_hour.ROOT)}
        first_hour.run([sys.executable, "-c", program, str(file), str(path)], environment, 100, tmp_path / "log")
        outcomes.append(
            {name.rpartition("::")[2]: test for name, test in json.loads(path.read_text())["tests"].items()}
        )
    assert outcomes[0]["test_one"]["outcome"] == "passed" and outcomes[0]["test_one"]["distances"] == {"error": 0.5}
    assert outcomes[0]["test_two"]["outcome"] == "failed" and "assert 0" in outcomes[0]["test_two"]["why"]
    assert "1 failed, 1 deselected" in (tmp_path / "log").read_text()


def test_the_plan_of_minutes_is_that_of_the_parts():
    rows = [line.split("|")[1:3] for line in first_hour.__doc__.splitlines() if line.startswith("| ")][1:]
    assert {name.strip(): float(minutes) * 60 for name, minutes in rows} == {n: p.seconds for n, p in PARTS.items()}
