"""Faults of the trainer's processes and of the sandbox's."""

import signal
import time

from tools.torture.leftovers import is_of_serve
from tools.torture.processes import send
from tools.torture.scene import Scene


def kill(scene: Scene, role: str, *, seconds: float = 2.0) -> str:
    """Sends SIGKILL to one process of that role."""
    process = scene.one_of(role, seconds=seconds)
    send([process], signal.SIGKILL)
    return f"SIGKILL to {role}"


def freeze(scene: Scene, *roles: str, seconds: float = 2.0) -> str:
    """Sends SIGSTOP to one process of these roles, and SIGCONT a moment later."""
    process = scene.one_of(*roles, seconds=seconds)
    send([process], signal.SIGSTOP)
    try:
        took = scene.pause(0.5, 3.0)
    finally:
        send([process], signal.SIGCONT)
    return f"SIGSTOP for {took:.1f} s"


def ask(scene: Scene, name: str) -> str:
    """Sends a stop signal: to all processes, as Slurm does, or to the launcher, as a user does.

    As from Slurm, the signal to all processes also reaches the sandbox's processes and the run's own servers.
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
    """Makes the file that asks a run to end."""
    (scene.run / "stop").touch()
    return "touch stop"


def kill_sandboxes(scene: Scene) -> str:
    """Sends SIGKILL to one to three sandboxes or their judges, as soon as they appear."""
    number = scene.random.randint(1, 3)
    roles = scene.random.choice([("bwrap",), ("judge",), ("bwrap", "judge")])
    killed = 0
    deadline = time.monotonic() + 20
    while killed < number and time.monotonic() < deadline:
        killed += send([scene.one_of(*roles, seconds=20)], signal.SIGKILL)
        time.sleep(0.05)
    return f"SIGKILL to {killed} of {' and '.join(roles)}"
