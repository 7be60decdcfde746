"""Addresses and free ports of this machine."""

import contextlib
import random
import socket

from megatron_sspo.errors import UserError

# These ports are below the kernel's ephemeral ports (by default from 32,768 on), so that no outgoing connection takes
# the port before the server listens on it.
_FIRST, _LAST = 20_000, 31_999


def free_port(address: str = "127.0.0.1") -> int:
    """Returns a port on which a server can listen at `address`, see `check_address`."""
    with reserve_port(address) as reserved:
        return reserved.getsockname()[1]


def reserve_port(address: str = "127.0.0.1") -> socket.socket:
    """Returns a socket that keeps a free port for a server that starts later; close it when the server has ended.

    The socket is bound and does not listen. A server that sets SO_REUSEADDR, as torch's store, SGLang and its router
    do, can then bind the same port and listen on it; this function, and programs that ask the kernel for a free port,
    choose another.
    """
    check_address(address)
    while True:
        port = random.SystemRandom().randint(_FIRST, _LAST)
        with contextlib.ExitStack() as if_it_fails, contextlib.suppress(OSError):
            reserved = if_it_fails.enter_context(socket.socket())
            reserved.bind((address, port))  # without the option, so that a port which another process keeps is taken
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if_it_fails.pop_all()
            return reserved


def check_address(address: str, remedy: str = "set rollouts.options.address to one") -> None:
    """Raises UserError if an address is none of this machine, or stands for all of them, as "" and 0.0.0.0 do."""
    check_free(address, 0, remedy)
    if address in ("", "0.0.0.0"):
        raise UserError(f"{address!r} is all addresses of this machine, and clients need one of them: {remedy}")


def check_free(address: str, port: int, remedy: str) -> None:
    """Raises UserError if a server cannot listen on a port; the address "" is all of them, and port 0 any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections may be in TIME_WAIT
        try:
            probe.bind((address, port))
        except OSError as error:
            where = f"port {port} of {address or socket.gethostname()}" if port else f"the address {address!r}"
            raise UserError(f"{where} is not free here ({error.strerror}): {remedy}") from error
