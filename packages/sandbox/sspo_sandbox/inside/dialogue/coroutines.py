"""Coroutines and asynchronous generators of the program, which the tests may await."""

from __future__ import annotations

from sspo_sandbox.inside.dialogue.handle import OPERATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

    from sspo_sandbox.inside.dialogue.peer import Peer


async def awaited(peer: Peer, number: int) -> Any:
    """Awaits a coroutine of the other process, which then runs to its end."""
    return peer.request("await", number)


async def items(peer: Peer, number: int) -> Any:
    """Yields the items of an asynchronous generator of the other process."""
    while True:
        try:
            yield peer.request("anext", number)
        except StopAsyncIteration:
            return


def _run(coroutine: Any) -> Any:
    """Returns the result of a coroutine, which runs to its end. All run in one event loop."""
    import asyncio

    global _loop
    _loop = _loop or asyncio.new_event_loop()
    return _loop.run_until_complete(coroutine)


_loop: Any = None
OPERATIONS["await"] = _run
OPERATIONS["anext"] = lambda items: _run(items.__anext__())
OPERATIONS["aenter"] = lambda value: _run(type(value).__aenter__(value))
OPERATIONS["aexit"] = lambda value, kind, error: _run(type(value).__aexit__(value, kind, error, None))
