"""A conversion that is stopped leaves nothing that looks finished, and the same command starts again."""

import os
import time

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.verify import verify
from megatron_sspo.weights.formats.model_folder import ModelFolder
from tests.forking import Python

KINDS = pytest.mark.parametrize("source", [0, 1], ids=["hf", "megatron"])


@KINDS
def test_a_full_disk_is_one_sentence(pair, tmp_path, small_files, source):
    with pytest.raises(
        UserError, match=rf"cannot (use|write) .*{tmp_path / 'out'}.*; .*write to another disk"
    ) as raised:
        convert(pair[source], tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("out*"))


@KINDS
@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_an_error_in_the_middle_leaves_nothing(pair, tmp_path, monkeypatch, source, error):
    calls, read = iter(range(20)), ModelFolder.read

    def read_or_stop(*arguments, **options):
        if list(tmp_path.glob("out.partial-*/*")) and next(calls, None) is None:
            raise error
        return read(*arguments, **options)

    monkeypatch.setattr(ModelFolder, "read", read_or_stop)
    with pytest.raises(error):
        convert(pair[source], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@KINDS
def test_a_killed_conversion_starts_again(pair, tmp_path, monkeypatch, source):
    """SIGKILL comes when the first bytes are there."""
    command = ["-c", _SLOW, str(pair[source]), str(tmp_path / "out")]
    process = Python(*command, folder=tmp_path, environment=os.environ)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out.partial-*/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None
    process.kill()
    process.wait(timeout=30)
    assert not (tmp_path / "out").exists()
    [left] = tmp_path.glob("out*")
    convert(pair[source], tmp_path / "out")
    assert verify(pair[0], tmp_path / "out").differences == []
    assert not left.exists() and [path.name for path in tmp_path.glob("out*")] == ["out"]


_SLOW = """
import sys, time
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.formats.model_folder import ModelFolder
read = ModelFolder.read
ModelFolder.read = lambda *arguments, **options: time.sleep(0.5) or read(*arguments, **options)
convert(*sys.argv[1:])
"""
