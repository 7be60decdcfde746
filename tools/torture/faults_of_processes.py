"""Faults of the trainer's processes and of the sandbox's."""

import signal
import time

from tools.torture.leftovers import is_of_serve
from tools.torture.processes import send
from tools.torture.scene import Scene


def kill(scene: Scene, role: str, *, seconds: float = 2.0) -> str:
    """SIGKILL to one process of that role."""
    process = scene.one_of(role, seconds=seconds)
    send([process], signal.SIGKILL)
    return f"SIGKILL to {role}"


def freeze(scene: Scene, *roles: str, seconds: float = 2.0) -> str:
    """SIGSTOP to one process of these roles, and SIGCONT a moment later."""
    process = scene.one_of(*roles, seconds=seconds)
    send([process], signal.SIGSTOP)
    try:
        took = scene.pause(0.5, 3.0)
    finally:
        send([process], signal.SIGCONT)
    return f"SIGSTOP for {took:.1f} s"


def ask(scene: Scene, name: str) -> str:
    """A signal that asks a run to end early: as Slurm sends it to all processes, or as a user does to the one started.

    Slurm's reaches the sandbox's processes too, and those of servers that the run owns.
    """
    assert scene.life is not None
    number = signal.Signals[name]
    if scene.random.random() < 0.5:
        scene.life.ask(number)
        return f"{name} to the launcher"
    everybody = [process for process in scene.processes.alive() if not is_of_serve(process)]
    send(everybody, number)
    return f"{name} to all {len(everybody)} processes"


def make_stop_file(scene: Scene) -> str:
    """The file that asks a run to end."""
    (scene.run / "stop").touch()
    return "touch stop"


def kill_sandboxes(scene: Scene) -> str:
    """SIGKILL to the first sandbox that shows up, or to its judge, and to those of the next moments."""
    number = scene.random.randint(1, 3)
    roles = scene.random.choice([("bwrap",), ("judge",), ("bwrap", "judge")])
    killed = 0
    deadline = time.monotonic() + 20
    while killed < number and time.monotonic() < deadline:
        killed += send([scene.one_of(*roles, seconds=20)], signal.SIGKILL)
        time.sleep(0.05)
    return f"SIGKILL to {killed} of {' and '.join(roles)}"
