"""The first process of a sandbox: sets the limits, then does what the mode says.

    python -c ... MODE JOB CHANNEL LIMITS

JOB is a file descriptor with what there is to do, CHANNEL one for what is found, LIMITS the limits by the names of
Python's `resource`.
"""

import json
import os
import resource
import signal
import sys

from megatron_sspo.sandbox.inside.signals import prepare_for_program


def main() -> None:
    """Starts what the mode says. Never returns in the calling process, which is the sandbox's init."""
    mode, job, channel, limits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    for name, value in limits.items():
        soft_first = name == "RLIMIT_CPU"  # a signal that tells why, and a second later the one that cannot be ignored
        resource.setrlimit(getattr(resource, name), (value, value + soft_first))
    os.write(channel, b"+")  # the clock starts here
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which init ignores, when it comes from its own sandbox
    sys.argv = ["program.py"]
    sys.path.append(f"{os.path.dirname(os.__file__)}/site-packages")
    if mode == "tests":
        from megatron_sspo.sandbox.inside.judge import judge

        judge(job, channel)
    elif mode == "cases":
        from megatron_sspo.sandbox.inside.cases import run_cases

        run_cases(job, channel)
    else:
        _continue_in_child()
        if mode == "run":
            from megatron_sspo.sandbox.inside.program import run

            prepare_for_program()
            run(job, channel)
        else:
            from megatron_sspo.sandbox.inside.cells import serve

            prepare_for_program()
            serve(job, channel)


def _continue_in_child() -> None:
    """Returns in a child process. Its parent reaps dead processes, and ends as the child does."""
    child = os.fork()
    if child == 0:
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
