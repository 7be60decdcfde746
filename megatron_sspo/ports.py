"""Ports of this machine that nobody listens on."""

import contextlib
import random
import socket

# Below those that the kernel hands out to connections (from 32,768 on, unless told otherwise), so that a port stays
# free between here and the server that is told to listen on it.
_FIRST, _LAST = 20_000, 31_999


def free_port(address: str = "127.0.0.1") -> int:
    """A port at which a server can listen on `address`.

    Raises:
        OSError: `address` is none of this machine's.
    """
    with socket.socket() as probe:
        probe.bind((address, 0))
    while True:
        port = random.SystemRandom().randint(_FIRST, _LAST)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            return port
