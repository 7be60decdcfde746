"""Faults of the servers."""

import contextlib
import re
import signal
import socket
import time

import psutil

from tools.torture.processes import send, with_children
from tools.torture.scene import NotNow, Scene

_START_SECONDS = 40.0  # timeout until a new server starts its imports
_REFUSAL_SECONDS = 60.0


def kill_server(scene: Scene, *, whole: bool) -> str:
    """Sends SIGKILL to a server and all its children, or to one of its workers."""
    if whole:
        server = scene.one_of("server")
        count = send(with_children(server), signal.SIGKILL)
        return f"SIGKILL to a server's {count} processes"
    worker = scene.one_of("scheduler", "detokenizer")
    name = " ".join(worker.cmdline())
    send([worker], signal.SIGKILL)
    return f"SIGKILL to {name}"


def kill_all_servers(scene: Scene) -> str:
    """Sends SIGKILL to all servers at once."""
    servers = scene.processes.of_role("server")
    if not servers:
        raise NotNow("no server")
    count = sum(send(with_children(server), signal.SIGKILL) for server in servers)
    return f"SIGKILL to {count} processes of {len(servers)} servers"


def freeze_server(scene: Scene, shortest: float, longest: float) -> str:
    """Sends SIGSTOP to all of a server's processes, and later SIGCONT to those that still exist."""
    processes = with_children(scene.one_of("server"))
    send(processes, signal.SIGSTOP)
    try:
        took = scene.pause(shortest, longest)
    finally:
        send(processes, signal.SIGCONT)
    return f"SIGSTOP for {took:.1f} s"


def server_port_taken(scene: Scene) -> str:
    """Occupies the port that one of the run's own servers is to listen on, before the server does."""
    server = scene.one_of("server", seconds=_START_SECONDS)
    port = _port_of(server)
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise NotNow(f"the server listens already at port {port}") from error
        listener.listen()
        deadline = time.monotonic() + 60
        while server.is_running() and time.monotonic() < deadline:  # until the server has noticed
            if scene.life is None or scene.life.exit_code() is not None:
                break
            time.sleep(0.2)
    return f"port {port}"


def _port_of(server: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        if found := re.search(r"--port (\d+)", " ".join(server.cmdline())):
            return int(found[1])
    raise NotNow("the server is gone")


def serve_port_taken(scene: Scene) -> str:
    """Starts a second `serve` at the port of the first; the second has to refuse."""
    assert scene.servers is not None
    second = scene.servers.start(scene.servers.port)
    try:
        code = second.wait(_REFUSAL_SECONDS)
    finally:
        second.kill()
        second.wait()
    if code != 2:
        raise AssertionError(f"a second `serve` at a port that is taken ended with exit code {code}, not with 2")
    return f"port {scene.servers.port}: refused"
