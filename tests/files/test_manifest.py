"""The manifest of a run's checkpoint."""

import json

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


def without_checksum(path):
    content = json.loads(path.read_text())
    del content["crc32"]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("damage", [without_checksum, lambda path: path.unlink()])
def test_a_damaged_manifest_is_named(tmp_path, damage):
    write_manifest(tmp_path, MANIFEST)
    damage(tmp_path / NAME)
    with pytest.raises(UserError, match=f"is damaged .*{NAME}"):
        read_manifest(tmp_path)
