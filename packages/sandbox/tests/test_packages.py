"""Tests of the packages that programs in the sandbox may import."""

import contextlib
from pathlib import Path

import pytest

from packages.sandbox.tests.conftest import LIMITS
from sspo_sandbox import Sandbox, SandboxError, open_sandbox


def install(folder: Path, name: str, *files: str) -> None:
    """Makes the record of a distribution with these files."""
    record = folder / f"{name}-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
    (record / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{name}-1.dist-info/METADATA")))


def test_a_package_that_cannot_be_copied_or_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program that imports it would be wrong."""
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "edited", "__editable__.edited-1.pth", "__editable___edited_1_finder.py", "../../bin/edited")
    with pytest.raises(SandboxError, match=r"cannot import edited .*No module named 'edited'\)"):
        open_sandbox({"wall_seconds": 20.0}, packages=["edited"])
    install(tmp_path, "needy", "needy.py")
    (tmp_path / "needy.py").write_text("import what_it_needs")
    with pytest.raises(SandboxError, match=r"cannot import needy .*No module named 'what_it_needs'\): add"):
        open_sandbox({"wall_seconds": 20.0}, packages=["packaging", "needy"])


def test_packages_of_this_environment_are_copied() -> None:
    with contextlib.closing(Sandbox(LIMITS, packages=["packaging"])) as made:
        program = "import packaging.version as v; print(v.Version('1.0') < v.Version('2'))"
        assert made.run(program).stdout == "True\n"
        assert made.run("import pytest").end_reason == "error"
