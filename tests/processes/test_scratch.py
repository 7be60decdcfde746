"""Temporary folders of processes that were killed are removed by the next one."""

import errno
import fcntl
import subprocess
import sys

from megatron_sspo.processes.scratch import ScratchFolder

PREFIX = "of-this-test-"


def test_a_folder_that_nobody_holds_is_removed(tmp_path) -> None:
    program = (
        "from megatron_sspo.processes.scratch import ScratchFolder\n"
        f"print(ScratchFolder({PREFIX!r}, {str(tmp_path)!r}).path, flush=True); input()"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    theirs = tmp_path / other.stdout.readline().strip()
    (theirs / "file").write_text("")
    (tmp_path / "of-another").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "of-another")
    first = ScratchFolder(PREFIX, str(tmp_path))
    assert theirs.exists() and first.path.exists(), "both are held"
    other.kill()
    other.wait()
    second = ScratchFolder(PREFIX, str(tmp_path), 0o755)
    assert not theirs.exists() and first.path.exists()
    assert first.path.stat().st_mode & 0o777 == 0o700 and second.path.stat().st_mode & 0o777 == 0o755
    for folder in (first, second, second):
        folder.close()
    assert {path.name for path in tmp_path.iterdir()} == {"of-another", f"{PREFIX}link"}


def test_a_file_system_without_locks(tmp_path, monkeypatch) -> None:
    def refuse(*_) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    first = ScratchFolder(PREFIX, str(tmp_path))
    second = ScratchFolder(PREFIX, str(tmp_path))
    assert first.path.exists(), "it may be in use"
    for folder in (first, second):
        folder.close()
    assert not list(tmp_path.iterdir())
