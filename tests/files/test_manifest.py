"""The manifest of a run's checkpoint."""

import json
import os
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import NAME, Entry, Manifest, read_manifest, write_manifest

MANIFEST = Manifest({"trainer/a": Entry(3, 2**31), "é": Entry(0, 0)}, {"seed": 1e-6, "name": "é\n", "sets": [None]})


def test_every_flipped_bit_is_damage(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    content = (tmp_path / NAME).read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / NAME).write_bytes(flipped)
        with pytest.raises(UserError, match=f"is damaged .*{NAME}"):
            read_manifest(tmp_path)


def test_a_manifest_without_a_checksum_is_damaged(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    content = json.loads((tmp_path / NAME).read_text())
    del content["crc32"]
    (tmp_path / NAME).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"is damaged .*{NAME}"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/dev/full"), os.mkfifo])
def test_something_else_in_place_of_the_manifest(tmp_path, make):
    make(tmp_path / NAME)
    with pytest.raises(UserError, match=f"is damaged .*{NAME} cannot be read: .*not a regular file"):
        read_manifest(tmp_path)


def test_bytes_of_another_file_are_not_printed(tmp_path):
    (tmp_path / NAME).write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match=f"is damaged .*{NAME} cannot be read: UnicodeDecodeError: ") as raised:
        read_manifest(tmp_path)
    assert "\\x" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ['{"files": {"a": [1e999, 1]}, "run": {}}', '{"files": {}, "run": {"parallel": null}}']
)
def test_values_that_no_manifest_has(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(UserError, match=f"is damaged .*{NAME} cannot be read"):
        read_manifest(tmp_path)
