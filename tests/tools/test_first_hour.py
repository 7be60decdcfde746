"""The command of the first hour on GPUs: wrong environments, limits of time, and what is not run again."""

import argparse
import json
import os
import sys

import pytest

from tests.gpu import first_hour
from tests.gpu.first_hour import Part, measure, read


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
