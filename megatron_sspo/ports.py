"""Ports of this machine that nobody listens on."""

import contextlib
import random
import socket

from megatron_sspo.errors import UserError

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


def check_free(address: str, port: int, remedy: str) -> None:
    """Refuses a port that somebody listens on.

    Args:
        address: of this machine, that is to be listened on; "" for all of them.
        remedy: how the user names another.

    Raises:
        UserError: it is taken, or the address is none of this machine's.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier job may linger there
        try:
            probe.bind((address, port))
        except OSError as error:
            where = f"port {port} of {address or socket.gethostname()}"
            raise UserError(f"{where} cannot be listened on ({error.strerror}): {remedy}") from error
