"""Ends the tasks of an event loop."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits for their end; their errors are ignored."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def cancel_all_others(seconds: float = 30.0) -> None:
    """Cancels all other tasks of the running event loop and waits for their end; their errors are ignored.

    Args:
        seconds: the longest wait: a user's environment that hangs must not keep a run from its end.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    ended, _ = await asyncio.wait(tasks, timeout=seconds) if tasks else (tasks, tasks)
    await asyncio.gather(*ended, return_exceptions=True)  # otherwise asyncio prints errors that nobody has looked at
