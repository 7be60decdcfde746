"""Tasks of environments of the package `verifiers`, for the agent of the same name."""

from collections.abc import Mapping
from typing import Any

from megatron_sspo.agent.verifiers import TASK, chats
from megatron_sspo.data.row import Row


def rows(environment: Mapping[str, Any], python: str = "", folder: str = "", size: int | None = None) -> list[Row]:
    """Returns a row for each task of an environment. The gold answers stay in the environment, which scores episodes.

    Args:
        environment, python, folder: the options of the agent `verifiers`.
        size: the number of tasks, from the first one; None is all.

    Raises:
        UserError: the interpreter has no verifiers or no such environment, or its tasks have no end and `size` is None.
    """
    found = chats(environment, python, folder, size)  # which refuses an environment of another form
    taskset = environment.get("taskset")
    name = taskset.get("id", "verifiers") if isinstance(taskset, Mapping) else "verifiers"
    return [
        Row(id=f"{name}:{number}", question=chat, answer="", metadata={TASK: number})
        for number, chat in enumerate(found)
    ]
