"""Pickles of a few bytes that would take for ever to read, or to show in an error message."""

import io
import pickle
import time
import zipfile
from pathlib import Path

import pytest
import torch

from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.processes import forks
from megatron_sspo.weights.formats.torch_dist import read_index
from megatron_sspo.weights.formats.torch_record import locate

_TUPLES = b")" + b"2\x86" * 60  # a tuple of the last one, twice, 60 times: its hash and its repr take 2**60 steps
_PRIME = 2**61 - 1  # whole multiples have the same hash
_EQUAL_HASHES = b"(" + b"".join(b"\x8a\x0a" + (n * _PRIME).to_bytes(10, "little") + b"N" for n in range(60_000)) + b"u"
_INDEXES = {"nested tuples": b"\x80\x04}" + _TUPLES + b"Ns.", "equal hashes": b"\x80\x04}" + _EQUAL_HASHES + b"."}


@pytest.mark.parametrize("name", _INDEXES)
def test_an_index_that_is_not_read_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(forks, "is_single_threaded", lambda: True)  # pytest's own threads hold no locks here
    monkeypatch.setattr(forks, "CPU_SECONDS", 1)
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (tmp_path / ".metadata").write_bytes(_INDEXES[name])
    with pytest.raises(UserError, match=r"\.metadata is damaged \(it is not read within . s of processor time\)"):
        read_index(tmp_path)


def _record(tmp_path: Path, edit: dict[bytes, bytes]) -> bytes:
    """Returns what torch.save writes of a tensor, with another pickle."""
    saved, changed = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(3), saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("data.pkl"):
                for before, after in edit.items():
                    assert before in content, content
                    content = content.replace(before, after, 1)
            new.writestr(entry.filename, content)
    return changed.getvalue()


@pytest.mark.parametrize(
    "edit",
    [
        {b"\x80\x02": b"\x80\x02}" + _TUPLES + b"Ns0"},  # an item of a dictionary, which is then left out
        {b"\x80\x02": b"\x80\x02(" + _TUPLES + b"Nd0"},
        {b"\x80\x02": b"\x80\x04\x8f(" + _TUPLES + b"\x900"},  # a set
        {b"X\x01\x00\x00\x000": _TUPLES},  # the key of the storage
        {b"K\x03\x85": _TUPLES + b"\x85"},  # the shape
    ],
)
def test_a_record_that_is_not_read_in_time(tmp_path: Path, edit: dict[bytes, bytes]) -> None:
    record, file = _record(tmp_path, edit), tmp_path / "record"
    file.write_bytes(record)
    began = time.monotonic()
    with file.open("rb") as opened, pytest.raises(ValueError, match="there is no tensor at byte 0"):
        locate(opened.fileno(), 0, len(record))
    assert time.monotonic() - began < 10


def test_a_value_that_is_small_in_memory_and_huge_in_words() -> None:
    value = pickle.loads(b"\x80\x04" + _TUPLES + b".")
    assert short_repr(value) == "a tuple of many values"
    assert short_repr([value, 3]) == "a list of many values"
    loop: list[object] = []
    loop.append(loop)
    assert short_repr(loop) == "a list of many values"
    assert short_repr([1, {"a": (2,)}]) == "[1, {'a': (2,)}]"
