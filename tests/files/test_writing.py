"""Files that are replaced: nothing but a regular file is."""

import errno
import os
from pathlib import Path

import pytest

from megatron_sspo.files.writing import check_replaceable, write_atomically

KINDS = {"a pipe": os.mkfifo, "a folder": Path.mkdir, "a device": lambda path: path.symlink_to("/dev/null")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [check_replaceable, lambda path: write_atomically(path, "new")])
def test_only_a_regular_file_is_replaced(tmp_path: Path, kind: str, write) -> None:
    KINDS[kind](tmp_path / "file")
    before = os.lstat(tmp_path / "file")
    with pytest.raises(OSError, match="it is not a regular file"):
        write(tmp_path / "file")
    assert os.lstat(tmp_path / "file").st_ino == before.st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_check_makes_the_folder_and_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / ".new-old").touch()
    for name in ("old", "a/b/new"):
        check_replaceable(tmp_path / name)
    assert (tmp_path / "old").read_text() == "old"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "old"]


def test_an_error_of_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/file'"):
        write_atomically(tmp_path / "file", "new")
    assert not (tmp_path / "file").exists()
