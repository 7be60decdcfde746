"""Records: torch.load reads ours, `locate` finds the tensors of torch.save's, and everything else is refused."""

import contextlib
import io
import os
import pickle
import time
import zipfile
import zlib
from collections import OrderedDict

import numpy as np
import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.weights.formats.stored import Files, StoredPart, StoredTensor
from megatron_sspo.weights.formats.torch_record import RecordFrame, locate

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(), (9,), (3, 5), (1, 1, 7, 4), (0, 3), (3, 0)]


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def located(tmp_path, record, before=13, after=7):
    path = tmp_path / "file"
    path.write_bytes(b"x" * before + record + b"y" * after)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = locate(descriptor, before, len(record))
        return found, os.pread(descriptor, found.num_bytes, found.data_offset)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_torch_loads_a_framed_tensor(tmp_path, dtype, shape):
    tensor = torch.randn(shape).to(dtype)
    frame, crc = RecordFrame(dtype, shape), zlib.crc32(raw(tensor))
    record = frame.head(crc) + raw(tensor) + frame.tail(crc)
    loaded = torch.load(io.BytesIO(record), weights_only=True)
    assert loaded.dtype == dtype and loaded.shape == shape and torch.equal(loaded, tensor)
    assert zipfile.ZipFile(io.BytesIO(record)).testzip() is None, "a checksum is wrong"
    assert len(frame.head(0)) == len(frame.head(crc)) and len(frame.head(0)) % 64 == 0
    assert len(frame.tail(0)) == len(frame.tail(crc))
    found, content = located(tmp_path, record)
    assert (found.dtype, found.shape, content) == (dtype, shape, raw(tensor))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_finds_the_bytes_of_what_torch_saved(tmp_path, dtype, shape):
    tensor = torch.randn(shape).to(dtype)
    found, content = located(tmp_path, saved(tensor))
    assert (found.dtype, found.shape, content) == (dtype, shape, raw(tensor))


def test_a_view_into_a_larger_storage(tmp_path):
    whole = torch.arange(24.0).view(6, 4)
    found, content = located(tmp_path, saved(whole[2:5]))
    assert found.shape == (3, 4) and content == raw(whole[2:5])


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/megatron_sspo_was_here",)


def cut_off():
    record = saved(torch.zeros(1000))
    return record[:-500]


def with_pickle(pickled, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled, method)
        archive.writestr("archive/data/0", bytes(48))
    return buffer.getvalue()


def tensor_of(dtype=torch.FloatStorage, start=0, shape=(3, 4)):
    """Returns a record whose pickle has these values, of whatever types they are."""

    class Stored:
        pass

    class Made:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Stored(), start, shape, (4, 1), False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return ("storage", dtype, "0", "cpu", 12) if isinstance(obj, Stored) else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(Made())
    return with_pickle(buffer.getvalue())


def damaged(record, at, value):
    changed = bytearray(record)
    changed[at % len(record)] = value
    return bytes(changed)


HOSTILE = {
    "long": with_pickle(b"\x80\x02" + b"]0" * 1_000_000 + b"N."),
    "a bomb": with_pickle(b"\x80\x02" + b"]0" * 1_000_000 + b"N.", zipfile.ZIP_DEFLATED),
    "deflate of garbage": damaged(with_pickle(b"\x80\x02N.", zipfile.ZIP_DEFLATED), 46, 0xFF),
    "a memo of 4 GB": with_pickle(b"\x80\x02Nr" + (1 << 28).to_bytes(4, "little") + b"0."),
    "a text of 2 to the 45": with_pickle(b"\x80\x04\x8e" + (1 << 45).to_bytes(8, "little") + b"."),
    "a start that is text": tensor_of(start="a"),
    "a start before the storage": tensor_of(start=-5),
    "a start that is no integer": tensor_of(start=0.5),
    "a dtype that is none": tensor_of(dtype=OrderedDict()),
    "a shape that is text": tensor_of(shape="ab"),
    "a shape of 400 digits": tensor_of(shape=(10**400,)),
    "a negative shape": tensor_of(shape=(-3, 4)),
    "data beyond the file": damaged(saved(torch.zeros(3)), -22 - 30, 0xFF),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records_are_refused_at_once(tmp_path, name):
    started = time.process_time()
    with pytest.raises(ValueError, match="at byte 13"):
        located(tmp_path, HOSTILE[name])
    assert time.process_time() - started < 1.0


def test_a_changed_byte_raises_no_other_error(tmp_path):
    record = saved(torch.zeros(3))
    for at in range(len(record)):
        with contextlib.suppress(ValueError, OSError):
            located(tmp_path, damaged(record, at, 0xFF))


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"not a zip file at all",
        cut_off(),
        saved(torch.zeros(4, 3).t()),
        saved(torch.zeros(3, dtype=torch.int64)),
        saved([torch.zeros(3)]),
        saved({"a": 1}),
        saved(Evil()),
        pickle.dumps(Evil()),
    ],
    ids=["empty", "no zip", "cut off", "transposed", "integers", "list", "dict", "evil", "evil pickle"],
)
def test_records_without_a_tensor_are_refused(tmp_path, record):
    with pytest.raises(ValueError):
        located(tmp_path, record)
    assert not os.path.exists("/tmp/megatron_sspo_was_here")


def test_a_record_that_is_smaller_than_its_entry_is_refused(tmp_path):
    """The bytes after the record are those of another, and would be read in its place."""
    record, path = saved(torch.ones(2, 3)), tmp_path / "file"
    path.write_bytes(record * 3)
    for num_rows, is_right in ((2, True), (3, False)):
        part = StoredPart(path, 0, 0, num_rows, 0, 12, (0, len(record)))
        into = np.empty((num_rows, 12), dtype=np.uint8)
        refusal = contextlib.nullcontext() if is_right else pytest.raises(UserError, match=r"the shape \[2, 3\]")
        with refusal:
            Files().read(StoredTensor("a.weight", (num_rows, 3), torch.float32, (part,)), 0, num_rows, into)
