"""The process that holds the tests. The program runs in another process, which sends only data.

The program's process is forked before this process reads the tests. It gets no file descriptor for the verdict, and
this process's memory is hidden from it. So the program can neither read the expected results nor change how it is
judged. It may change its own builtins, output, exit code or comparison operators, but the asserts are evaluated here.
"""

import gc
import json
import os
import signal
import time

from megatron_sspo.sandbox.inside.common import wire
from megatron_sspo.sandbox.inside.common.program import read_job
from megatron_sspo.sandbox.inside.common.signals import prepare_for_program
from megatron_sspo.sandbox.inside.proxies.client import JudgeSide
from megatron_sspo.sandbox.inside.proxies.subject import ProgramSide


def judge(job: int, channel: int) -> None:
    """Runs a job's tests and writes the verdict, with the job's nonce, to the channel."""
    gc.disable()  # until the tests run, since objects made before are kept anyway
    gc.freeze()  # the program's collections leave them alone, so that both processes share their memory
    to_program, from_judge = os.pipe()
    to_judge, from_program = os.pipe()
    program = os.fork()
    if program == 0:
        gc.enable()
        wire.close_all_but({0, 1, 2, to_program, from_program})
        prepare_for_program()
        ProgramSide(to_program, from_program).serve()
    os.close(to_program)
    os.close(from_program)
    wire.forbid_inspection()
    work = read_job(job)
    reported: list[str] = []
    judge_side = JudgeSide(to_judge, from_judge, reported.append)
    judge_side.send_program(work["program"])
    from megatron_sspo.sandbox.inside.verdict.verdict import find_verdict  # imported while the program is loaded

    try:
        reason, detail = find_verdict(judge_side, work["tests"], reported)
    except BaseException as error:  # of the program's `__str__`, as the judge describes a failure; it chose the kind
        reason, detail = "error", f"a failure cannot be described: {type(error).__name__}"
    if judge_side.is_broken and _exceeded_cpu_limit(program):
        reason, detail = "time", "the limit on CPU seconds"
    with open(channel, "w") as file:
        json.dump({"nonce": work["nonce"], "reason": reason, "detail": detail[:2000]}, file)
    os._exit(0)  # this is the sandbox's first process, so all others end too


def _exceeded_cpu_limit(child: int) -> bool:
    for _ in range(50):  # a program's pipes close shortly before it is dead; or it has closed them and still runs
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status) == -signal.SIGXCPU
        time.sleep(0.01)
    return False
