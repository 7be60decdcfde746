"""The process that holds the tests. The program lives in another one, from which only data comes.

The program is forked off before this process has read the tests, and gets no descriptor of the verdict; this process's
memory is hidden from it. So the program can neither read what is expected of it, nor change how it is judged: whatever
it does to its own builtins, output, exit code or comparison operators, the asserts are evaluated here.
"""

import ast
import json
import os
import signal
import time
import traceback

from megatron_sspo.sandbox.inside import guard, wire
from megatron_sspo.sandbox.inside.checks import Rewriter
from megatron_sspo.sandbox.inside.client import Client, solution_module
from megatron_sspo.sandbox.inside.files import OwnFiles
from megatron_sspo.sandbox.inside.flow import Flow
from megatron_sspo.sandbox.inside.names import Namespace
from megatron_sspo.sandbox.inside.program import read_job, remember_lines
from megatron_sspo.sandbox.inside.record import Record
from megatron_sspo.sandbox.inside.signals import prepare_for_program
from megatron_sspo.sandbox.inside.sites import Sites
from megatron_sspo.sandbox.inside.subject import Subject
from megatron_sspo.sandbox.inside.trees import RECORD


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
    try:
        trees = [ast.parse(test, f"test {number}") for number, test in enumerate(tests, start=1)]
    except (SyntaxError, ValueError, RecursionError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    return _run_tests(client, tests, trees, reported)


def _run_tests(client: Client, tests: list[str], trees: list[ast.Module], reported: list[str]) -> tuple[str, str]:
    flow = Flow(trees)
    solution_module(client)
    may_lack = any("NameError" in test for test in tests)
    report = reported.append
    namespace = Namespace(client, flow, trees, lambda n: None if may_lack else report(f"name {n!r} is not defined"))
    client.files = OwnFiles(trees)
    sites = Sites(flow)
    record = namespace[RECORD] = Record(client, flow, sites)
    rewritten = [Rewriter(flow, number, sites).rewrite(tree) for number, tree in enumerate(trees, start=1)]
    guard.install(tests, report)
    for number, (test, tree) in enumerate(zip(tests, rewritten, strict=True), start=1):
        name = f"test {number}"
        remember_lines(name, test)
        try:
            exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        except wire.Broken as error:
            return "error", f"{name}: {error}"
        except BaseException as error:
            if not _ends_well(error, client):
                return ("memory" if isinstance(error, MemoryError) else "failed"), _describe(name, error)
    if client.is_broken:
        return "error", "the program ended, or broke the protocol"
    found = next(iter(reported), "") or record.verdict()
    return ("failed", found) if found else ("passed", "")


def _ends_well(error: BaseException, client: Client) -> bool:
    """Whether a test ended itself, as `unittest.main()` does, and not the program."""
    return isinstance(error, SystemExit) and not error.code and not any(error is e for e in client.raised_by_program)


def _describe(name: str, error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    line = f", {frames[-1].line}" if frames else ""
    return f"{name}{line}: {type(error).__name__}: {error}"
