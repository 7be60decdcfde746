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


async def cancel_all_others() -> None:
    """Cancels all other tasks of the running event loop and waits for their end."""
    await cancel(task for task in asyncio.all_tasks() if task is not asyncio.current_task())
