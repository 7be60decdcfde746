"""Tests of the packages that programs in the sandbox may import."""

from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.sandbox.image import main_module
from megatron_sspo.sandbox.probe import _import_packages
from megatron_sspo.sandbox.sandbox import Sandbox
from tests.sandbox.conftest import LIMITS


def install(folder: Path, name: str, *files: str) -> None:
    """Makes the record of a distribution with these files."""
    record = folder / f"{name}-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
    (record / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{name}-1.dist-info/METADATA")))


def test_a_package_that_cannot_be_copied_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program that imports it would be wrong."""
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "edited", "__editable__.edited-1.pth", "__editable___edited_1_finder.py", "../../bin/edited")
    with pytest.raises(UserError, match=r"package 'edited' has no list of its files, .* without -e"):
        Sandbox(LIMITS, packages=["edited"])


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "needy", "needy.py")
    (tmp_path / "needy.py").write_text("import what_it_needs")
    made = Sandbox(LIMITS, packages=["needy", "packaging"])
    try:
        _import_packages(made, ["packaging"])
        with pytest.raises(UserError, match=r"cannot import needy .*No module named 'what_it_needs'\): add"):
            _import_packages(made, ["needy"])
    finally:
        made.close()


def test_the_main_module_of_a_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(
        tmp_path, "spaced", "space/one/__init__.py", "space/one/two/__init__.py", "space/one/a.py", "tests/__init__.py"
    )
    install(tmp_path, "single", "single.cpython-311-x86_64-linux-gnu.so")
    install(tmp_path, "libraries", "nvidia/lib/libx.so")
    assert [main_module(name) for name in ("spaced", "single", "libraries")] == ["space.one", "single", ""]
