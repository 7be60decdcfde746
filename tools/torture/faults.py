"""The kinds of faults. A function makes each fault, and has undone it when it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tools.torture import faults_of_disk, faults_of_processes, faults_of_servers
from tools.torture.scene import FaultContext

Moment = Literal["starting", "working", "ending", "down"]
# An attempt with its own servers takes a minute to start, so it gets only the faults of these servers and three others.
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
        moments: the moments of a run's attempt when it can happen; the seed chooses one.
        needs: "mount" or "shim", which a machine may not support.
        ends: whether the fault ends the run, which is then resumed.
    """

    name: str
    act: Callable[[FaultContext], str]
    phases: tuple[str, ...] = MOST
    moments: tuple[Moment, ...] = ("working",)
    needs: Literal["", "mount", "shim"] = ""
    ends: bool = False


_p, _d, _s = faults_of_processes, faults_of_disk, faults_of_servers
ANY: tuple[Moment, ...] = ("working", "working", "starting", "ending")

KINDS = (
    Kind("kill -9 of rank 0", lambda context: _p.kill(context, "rank 0"), EVERYWHERE, ANY, ends=True),
    Kind("kill -9 of rank 1", lambda context: _p.kill(context, "rank 1"), moments=ANY, ends=True),
    Kind("kill -9 of the launcher", lambda context: _p.kill(context, "launcher"), EVERYWHERE, ANY, ends=True),
    Kind("kill -9 of the checkpoint writer", lambda context: _p.kill(context, "writer", seconds=10)),
    Kind("SIGSTOP, SIGCONT of a rank", lambda context: _p.freeze(context, "rank 0", "rank 1"), EVERYWHERE),
    Kind("SIGSTOP, SIGCONT of the launcher", lambda context: _p.freeze(context, "launcher"), moments=("working",)),
    Kind("SIGSTOP, SIGCONT of the checkpoint writer", lambda context: _p.freeze(context, "writer", seconds=10)),
    Kind(
        "SIGTERM",
        lambda context: _p.request_stop(context, "SIGTERM"),
        EVERYWHERE,
        ("working", "working", "starting"),
        ends=True,
    ),
    Kind("SIGUSR1", lambda context: _p.request_stop(context, "SIGUSR1"), ends=True),
    Kind("a file `stop`", _p.make_stop_file, ends=True),
    Kind("a clock that jumps", _d.jump, needs="shim"),
    Kind("a slow disk", _d.slow_disk, needs="shim"),
    Kind("a full disk", _d.full_disk, needs="mount"),
    Kind("a read-only folder", _d.read_only, needs="mount"),
    Kind("a corrupted newest checkpoint", _d.corrupt, moments=("down",), ends=True),
    Kind("a port taken: where ranks meet", _d.rendezvous_port_taken, moments=("down",), ends=True),
    Kind("a port taken: a server's", _s.server_port_taken, ("own",), ("starting",)),
    Kind("a port taken: of `serve`", _s.serve_port_taken, OUTSIDE),
    Kind("kill -9 of a server", lambda context: _s.kill_server(context, whole=True), SERVED),
    Kind(
        "kill -9 of a server's scheduler or detokenizer", lambda context: _s.kill_server(context, whole=False), SERVED
    ),
    Kind("kill -9 of all servers", _s.kill_all_servers, SERVED),
    Kind("SIGSTOP, SIGCONT of a server, briefly", lambda context: _s.freeze_server(context, 1, 4), SERVED),
    Kind("SIGSTOP of a server until it is taken out", lambda context: _s.freeze_server(context, 14, 18), SERVED),
    Kind("kill -9 of `serve`", lambda context: _p.kill(context, "serve"), OUTSIDE),
    Kind("kill -9 of the router", lambda context: _p.kill(context, "router"), ("router",)),
    Kind("SIGSTOP, SIGCONT of the router", lambda context: _p.freeze(context, "router"), ("router",)),
    Kind("kill -9 of sandbox workers", _p.kill_sandboxes, SERVED),
    Kind("SIGSTOP, SIGCONT of a sandbox worker", lambda context: _p.freeze(context, "bwrap", seconds=20), SERVED),
)
