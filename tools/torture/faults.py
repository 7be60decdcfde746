"""The kinds of faults. A function makes each fault, and has undone it when it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tools.torture import faults_of_disk, faults_of_processes, faults_of_servers
from tools.torture.scene import Scene

Moment = Literal["starting", "working", "ending", "down"]
# A life with its own servers takes a minute to start, so it gets only the faults of these servers and three more kinds.
MOST = ("embedded", "outside", "router")
EVERYWHERE = (*MOST, "own")
SERVED = ("outside", "own", "router")
OUTSIDE = ("outside", "router")


@dataclass(frozen=True)
class Kind:
    """A kind of fault, as a line of the table.

    Args:
        name: the name of the line.
        act: a function that makes the fault and describes it in words. It raises NotNow if it cannot make the fault.
        phases: the kinds of run that it applies to.
        moments: the moments of a run's life when it can happen; the seed chooses one.
        needs: "mount" or "shim", which a machine may not support.
        ends: whether the fault ends the run, which is then resumed.
    """

    name: str
    act: Callable[[Scene], str]
    phases: tuple[str, ...] = MOST
    moments: tuple[Moment, ...] = ("working",)
    needs: Literal["", "mount", "shim"] = ""
    ends: bool = False


_p, _d, _s = faults_of_processes, faults_of_disk, faults_of_servers
ANY: tuple[Moment, ...] = ("working", "working", "starting", "ending")

KINDS = (
    Kind("kill -9 of rank 0", lambda scene: _p.kill(scene, "rank 0"), EVERYWHERE, ANY, ends=True),
    Kind("kill -9 of rank 1", lambda scene: _p.kill(scene, "rank 1"), moments=ANY, ends=True),
    Kind("kill -9 of the launcher", lambda scene: _p.kill(scene, "launcher"), EVERYWHERE, ANY, ends=True),
    Kind("kill -9 of the checkpoint writer", lambda scene: _p.kill(scene, "writer", seconds=10)),
    Kind("SIGSTOP, SIGCONT of a rank", lambda scene: _p.freeze(scene, "rank 0", "rank 1"), EVERYWHERE),
    Kind("SIGSTOP, SIGCONT of the launcher", lambda scene: _p.freeze(scene, "launcher"), moments=("working",)),
    Kind("SIGSTOP, SIGCONT of the checkpoint writer", lambda scene: _p.freeze(scene, "writer", seconds=10)),
    Kind("SIGTERM", lambda scene: _p.ask(scene, "SIGTERM"), EVERYWHERE, ("working", "working", "starting"), ends=True),
    Kind("SIGUSR1", lambda scene: _p.ask(scene, "SIGUSR1"), ends=True),
    Kind("a file `stop`", _p.make_stop_file, ends=True),
    Kind("a clock that jumps", _d.jump, needs="shim"),
    Kind("a slow disk", _d.slow_disk, needs="shim"),
    Kind("a full disk", _d.full_disk, needs="mount"),
    Kind("a read-only folder", _d.read_only, needs="mount"),
    Kind("a corrupted newest checkpoint", _d.corrupt, moments=("down",), ends=True),
    Kind("a port taken: where ranks meet", _d.meeting_port_taken, moments=("down",), ends=True),
    Kind("a port taken: a server's", _s.server_port_taken, ("own",), ("starting",)),
    Kind("a port taken: of `serve`", _s.serve_port_taken, OUTSIDE),
    Kind("kill -9 of a server", lambda scene: _s.kill_server(scene, whole=True), SERVED),
    Kind("kill -9 of a server's scheduler or detokenizer", lambda scene: _s.kill_server(scene, whole=False), SERVED),
    Kind("kill -9 of all servers", _s.kill_all_servers, SERVED),
    Kind("SIGSTOP, SIGCONT of a server, briefly", lambda scene: _s.freeze_server(scene, 1, 4), SERVED),
    Kind("SIGSTOP of a server until it is taken out", lambda scene: _s.freeze_server(scene, 14, 18), SERVED),
    Kind("kill -9 of `serve`", lambda scene: _p.kill(scene, "serve"), OUTSIDE),
    Kind("kill -9 of the router", lambda scene: _p.kill(scene, "router"), ("router",)),
    Kind("SIGSTOP, SIGCONT of the router", lambda scene: _p.freeze(scene, "router"), ("router",)),
    Kind("kill -9 of sandbox workers", _p.kill_sandboxes, SERVED),
    Kind("SIGSTOP, SIGCONT of a sandbox worker", lambda scene: _p.freeze(scene, "bwrap", seconds=20), SERVED),
)
