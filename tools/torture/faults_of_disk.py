"""Faults of the disk, the clock, the newest checkpoint, and the rendezvous port."""

import random
import shutil
import socket
from pathlib import Path

from tools.torture.scene import NotNow, Scene

_SECONDS = (4.0, 8.0)  # how long a disk is full, slow or read-only: the time of several checkpoints


def full_disk(scene: Scene) -> str:
    """Fills the disk completely for some seconds."""
    scene.disk.fill()
    try:
        took = scene.pause(*_SECONDS)
    finally:
        scene.disk.empty()
    return f"full for {took:.1f} s, or until the run ended"


def read_only(scene: Scene) -> str:
    """Makes the run's folder, or the folder of its checkpoints, read-only for some seconds."""
    folder = scene.random.choice([scene.run, scene.run / "checkpoints"])
    if not folder.exists():
        raise NotNow(f"no {folder.name}")
    scene.disk.refuse_writes(folder)
    try:
        took = scene.pause(*_SECONDS)
    finally:
        scene.disk.allow_writes(folder)
    return f"{folder.name}/ for {took:.1f} s, or until the run ended"


def slow_disk(scene: Scene) -> str:
    """Makes every fsync slower for some seconds."""
    delay = scene.random.choice([0.05, 0.2, 0.5])
    scene.shim.slow_down(delay)
    try:
        took = scene.pause(*_SECONDS)
    finally:
        scene.shim.slow_down(0.0)
    return f"each fsync {delay} s longer, for {took:.1f} s"


def jump(scene: Scene) -> str:
    """Changes the wall clock of all the run's processes by seconds to a day, and corrects it later: two jumps."""
    seconds = scene.random.choice([-86_400, -3600, -5, 5, 3600, 86_400])
    scene.shim.jump(seconds)
    try:
        took = scene.pause(2.0, 5.0)
    finally:
        scene.shim.jump(0.0)
    return f"{seconds:+} s for {took:.1f} s"


def corrupt(scene: Scene) -> str:
    """Damages the newest checkpoint while the run is down."""
    found = sorted((scene.run / "checkpoints").glob("update-*"))
    if len(found) < 2:
        raise NotNow("fewer than two checkpoints")
    how = scene.random.choice(list(_DAMAGE))
    return f"{found[-1].name}: {_DAMAGE[how](found[-1], scene.random)}"


def _flip_bytes(checkpoint: Path, chance: random.Random) -> str:
    """Flips bytes, as a disk with undetected errors does."""
    shard = _shard(checkpoint, chance)
    content = bytearray(shard.read_bytes())
    place = chance.randrange(len(content) // 4, len(content) * 3 // 4)
    for number in range(place, min(place + 16, len(content))):
        content[number] ^= 0xFF
    shard.write_bytes(content)
    return f"16 bytes of {shard.name} flipped"


def _shorten(checkpoint: Path, chance: random.Random) -> str:
    shard = _shard(checkpoint, chance)
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    return f"{shard.name} is half as long"


def _delete_shard(checkpoint: Path, chance: random.Random) -> str:
    shard = _shard(checkpoint, chance)
    shard.unlink()
    return f"{shard.name} is gone"


def _truncate_state(checkpoint: Path, chance: random.Random) -> str:
    path = checkpoint / "state.json"
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])
    return "state.json is cut"


def _truncate_batches(checkpoint: Path, chance: random.Random) -> str:
    path = checkpoint / "batches.jsonl"
    content = path.read_bytes()
    if not content:
        return _truncate_state(checkpoint, chance)
    path.write_bytes(content[: chance.randrange(len(content))])
    return "batches.jsonl is cut"


def _empty_index(checkpoint: Path, _: random.Random) -> str:
    (checkpoint / "trainer" / ".metadata").write_bytes(b"")
    return ".metadata is empty"


def _delete_trainer(checkpoint: Path, _: random.Random) -> str:
    shutil.rmtree(checkpoint / "trainer")
    return "trainer/ is gone"


def _shard(checkpoint: Path, chance: random.Random) -> Path:
    return chance.choice(sorted((checkpoint / "trainer").glob("*.distcp")))


_DAMAGE = {
    "flip": _flip_bytes,
    "shorten": _shorten,
    "delete": _delete_shard,
    "state": _truncate_state,
    "batches": _truncate_batches,
    "index": _empty_index,
    "trainer": _delete_trainer,
}


def meeting_port_taken(scene: Scene) -> str:
    """Occupies MASTER_PORT for some seconds; the ranks of the next life are started one by one, as Slurm does."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    scene.meeting_port, scene.listener = listener.getsockname()[1], listener
    return f"MASTER_PORT={scene.meeting_port}"
