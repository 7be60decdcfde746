"""The steps that a journal accepts after a kill of the process, and after a crash of the machine."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.processes import surroundings
from megatron_sspo.weights.conversion.journal import ConversionProgress, Journal


@pytest.fixture
def boot(tmp_path, monkeypatch):
    """boot(name): simulates a reboot of the machine."""
    path = tmp_path / "boot_id"

    def set_boot(name):
        path.write_text(name)
        monkeypatch.setattr(surroundings, "_BOOT_ID", path)

    set_boot("first")
    return set_boot


def killed(journal):
    """Leaves the file as a kill would: nothing more is written or flushed."""
    journal._flush = lambda: None
    with journal._changed:
        journal._write = lambda entry: None
    journal.close()


def test_killed_copy_continues(tmp_path, boot):
    path = tmp_path / "journal"
    first = Journal(path, lambda: None)
    first.note(3, ConversionProgress(10, 77), 1)
    first.note(3, ConversionProgress(20, 78), 1)
    first.note(5, ConversionProgress(4, 79, finished=True), 1)
    killed(first)
    second = Journal(path, lambda: None)
    assert second.done == {3: ConversionProgress(20, 78), 5: ConversionProgress(4, 79, finished=True)}
    second.close()


def test_truncated_line_is_dropped(tmp_path, boot):
    path = tmp_path / "journal"
    first = Journal(path, lambda: None)
    first.note(1, ConversionProgress(10, 77), 1)
    first.note(1, ConversionProgress(20, 78), 1)
    killed(first)
    path.write_bytes(path.read_bytes()[:-9])
    second = Journal(path, lambda: None)
    assert second.done == {1: ConversionProgress(10, 77)}
    second.close()


@pytest.mark.parametrize(
    "invalid", [b"\0" * 30, b"\xff\xfe", b"7", b"[]", b'{"tensor": 2}', b'{"flushed": null}', b"[" * 10_000]
)
def test_lines_after_an_invalid_line_are_dropped(tmp_path, boot, invalid):
    path = tmp_path / "journal"
    first = Journal(path, lambda: None)
    first.note(1, ConversionProgress(10, 77), 1)
    killed(first)
    path.write_bytes(path.read_bytes() + invalid + b"\n" + b'{"tensor": 1, "rows": 20, "crc": 5, "finished": false}\n')
    second = Journal(path, lambda: None)
    assert second.done == {1: ConversionProgress(10, 77)}
    second.close()


def test_after_a_reboot_only_flushed_steps_count(tmp_path, boot):
    path = tmp_path / "journal"
    flushed = threading.Event()
    first = Journal(path, flushed.set, every=100)
    first.note(1, ConversionProgress(10, 77), 100)
    assert flushed.wait(10)
    while '"flushed"' not in path.read_text():
        pass
    first.note(1, ConversionProgress(20, 78), 99)
    killed(first)
    boot("second")
    second = Journal(path, lambda: None)
    assert second.done == {1: ConversionProgress(10, 77)}
    second.note(1, ConversionProgress(15, 80), 1)
    killed(second)
    third = Journal(path, lambda: None)
    assert third.done == {1: ConversionProgress(15, 80)}, "what was not believed once must not come back"
    third.close()


def test_after_a_reboot_unflushed_steps_are_dropped(tmp_path, boot):
    path = tmp_path / "journal"
    first = Journal(path, lambda: None)
    first.note(1, ConversionProgress(10, 77, finished=True), 5)
    killed(first)
    boot("second")
    second = Journal(path, lambda: None)
    assert second.done == {}
    second.close()


def test_close_flushes(tmp_path, boot):
    path = tmp_path / "journal"
    flushes = []
    first = Journal(path, lambda: flushes.append(1))
    first.note(1, ConversionProgress(10, 77, finished=True), 5)
    first.close()
    first.close()
    assert flushes == [1]
    boot("second")
    second = Journal(path, lambda: None)
    assert second.done == {1: ConversionProgress(10, 77, finished=True)}
    second.close()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/full")])
def test_something_else_in_place_of_the_journal(tmp_path, make):
    make(tmp_path / "journal")
    with pytest.raises(UserError, match=r"cannot read .*journal: it is a .*, not a regular file"):
        Journal(tmp_path / "journal", lambda: None)


def test_bytes_that_cannot_be_flushed_are_an_error_and_are_copied_again(tmp_path, boot):
    """A shared disk that is full accepts writes, and says so when they are flushed."""
    path, is_full = tmp_path / "journal", []

    def flush():
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")

    first = Journal(path, flush, every=1)
    first.note(3, ConversionProgress(10, 77), 1)
    while b"flushed" not in path.read_bytes():
        time.sleep(0.01)
    is_full.append(True)
    first.note(3, ConversionProgress(20, 78), 1)
    with pytest.raises(OSError, match="No space left"):
        first.close()
    first.close()  # a second call does nothing
    second = Journal(path, lambda: None)
    assert second.done == {3: ConversionProgress(10, 77)}
    second.close()
