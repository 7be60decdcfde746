"""Faults of the disk, the clock, the newest checkpoint, and the rendezvous port."""

import random
import shutil
import socket
from pathlib import Path

from tools.torture.scene import FaultContext, NotNow

_SECONDS = (4.0, 8.0)  # how long a disk is full, slow or read-only: the time of several checkpoints


def full_disk(context: FaultContext) -> str:
    """Fills the disk completely for some seconds."""
    context.disk.fill()
    try:
        took = context.pause(*_SECONDS)
    finally:
        context.disk.empty()
    return f"full for {took:.1f} s, or until the run ended"


def read_only(context: FaultContext) -> str:
    """Makes the run's folder, or the folder of its checkpoints, read-only for some seconds."""
    folder = context.random.choice([context.run, context.run / "checkpoints"])
    if not folder.exists():
        raise NotNow(f"no {folder.name}")
    context.disk.refuse_writes(folder)
    try:
        took = context.pause(*_SECONDS)
    finally:
        context.disk.allow_writes(folder)
    return f"{folder.name}/ for {took:.1f} s, or until the run ended"


def slow_disk(context: FaultContext) -> str:
    """Makes every fsync slower for some seconds."""
    delay = context.random.choice([0.05, 0.2, 0.5])
    context.shim.slow_down(delay)
    try:
        took = context.pause(*_SECONDS)
    finally:
        context.shim.slow_down(0.0)
    return f"each fsync {delay} s longer, for {took:.1f} s"


def jump(context: FaultContext) -> str:
    """Changes the wall clock of all the run's processes by seconds to a day, and corrects it later: two jumps."""
    seconds = context.random.choice([-86_400, -3600, -5, 5, 3600, 86_400])
    context.shim.jump(seconds)
    try:
        took = context.pause(2.0, 5.0)
    finally:
        context.shim.jump(0.0)
    return f"{seconds:+} s for {took:.1f} s"


def corrupt(context: FaultContext) -> str:
    """Damages the newest checkpoint while the run is down."""
    found = sorted((context.run / "checkpoints").glob("update-*"))
    if len(found) < 2:
        raise NotNow("fewer than two checkpoints")
    how = context.random.choice(list(_DAMAGE))
    return f"{found[-1].name}: {_DAMAGE[how](found[-1], context.random)}"


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
    path = checkpoint / "batches.npz"
    content = path.read_bytes()
    if not content:
        return _truncate_state(checkpoint, chance)
    path.write_bytes(content[: chance.randrange(len(content))])
    return "batches.npz is cut"


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


def rendezvous_port_taken(context: FaultContext) -> str:
    """Occupies MASTER_PORT for some seconds; the ranks of the next attempt are started one by one, as Slurm does."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    context.rendezvous_port, context.listener = listener.getsockname()[1], listener
    return f"MASTER_PORT={context.rendezvous_port}"
