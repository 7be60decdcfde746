"""The process that holds the tests. The program lives in another one, from which only data comes.

The program is forked off before this process has read the tests, and gets no descriptor of the verdict; this process's
memory is hidden from it. So the program can neither read what is expected of it, nor change how it is judged: whatever
it does to its own builtins, output, exit code or comparison operators, the asserts are evaluated here.
"""

import builtins
import json
import os
import signal
import time
import traceback
from typing import Any

from megatron_sspo.sandbox.inside import wire
from megatron_sspo.sandbox.inside.client import Client, solution_module
from megatron_sspo.sandbox.inside.program import read_job, remember_lines
from megatron_sspo.sandbox.inside.signals import prepare_for_program
from megatron_sspo.sandbox.inside.subject import Subject


def judge(job: int, channel: int) -> None:
    """Runs a job's tests and writes the verdict, with the job's nonce, into the channel."""
    to_subject, from_judge = os.pipe()
    to_judge, from_subject = os.pipe()
    subject = os.fork()
    if subject == 0:
        wire.close_all_but({0, 1, 2, to_subject, from_subject})
        prepare_for_program()
        Subject(to_subject, from_subject).serve()
    os.close(to_subject)
    os.close(from_subject)
    wire.forbid_inspection()
    work = read_job(job)
    reported: list[str] = []
    client = Client(to_judge, from_judge, reported.append)
    reason, detail = _verdict(client, work["program"], work["tests"], reported)
    if client.is_broken and _died_of_its_cpu_limit(subject):
        reason, detail = "time", "the limit on CPU seconds"
    with open(channel, "w") as file:
        json.dump({"nonce": work["nonce"], "reason": reason, "detail": detail[:2000]}, file)
    os._exit(0)  # the first process of the sandbox ends, and with it all others


def _died_of_its_cpu_limit(child: int) -> bool:
    for _ in range(50):  # its pipes close a moment before it is dead, or it has closed them and lives
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status) == -signal.SIGXCPU
        time.sleep(0.01)
    return False


def _verdict(client: Client, program: str, tests: list[str], reported: list[str]) -> tuple[str, str]:
    try:
        client.load(program)
    except wire.Broken as error:
        return "error", str(error)
    except BaseException as error:
        return ("memory" if isinstance(error, MemoryError) else "error"), f"{type(error).__name__}: {error}"
    solution_module(client)
    namespace = _Namespace(client)
    for number, test in enumerate(tests, start=1):
        name = f"test {number}"
        remember_lines(name, test)
        try:
            exec(compile(test, name, "exec", dont_inherit=True), namespace)
        except wire.Broken as error:
            return "error", f"{name}: {error}"
        except BaseException as error:
            return ("memory" if isinstance(error, MemoryError) else "failed"), _describe(name, error)
    return ("passed", "") if not client.is_broken else ("error", "the program ended, or broke the protocol")


def _describe(name: str, error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    line = f", {frames[-1].line}" if frames else ""
    return f"{name}{line}: {type(error).__name__}: {error}"


class _Namespace(dict):
    """The tests' globals: their own names, Python's, and then the program's."""

    def __init__(self, client: Client) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self._client = client

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)  # Python looks among its own: no program can stand in for `len` or `sorted`
        found, value = self._client.name(name)
        if not found:
            raise KeyError(name)
        return value
