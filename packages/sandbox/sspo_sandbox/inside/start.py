"""The first process of a sandbox: sets the limits, then runs the given mode.

    python -c ... MODE JOB CHANNEL LIMITS

MODE is a module of this folder and its function. JOB is a file descriptor to read the job from, and CHANNEL one to
write the results to. LIMITS is a JSON object with the limits by their names in Python's `resource`.
"""

import importlib
import json
import os
import resource
import signal
import sys

from sspo_sandbox.inside.program import prepare_for_program


def main() -> None:
    """Sets the limits and runs the mode. It never returns in the calling process, which is the sandbox's init."""
    mode, job, channel, limits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    for name, value in limits.items():
        soft_first = name == "RLIMIT_CPU"  # SIGXCPU tells the cause; SIGKILL follows a second later
        try:
            resource.setrlimit(getattr(resource, name), (value, value + soft_first))
        except ValueError:
            sys.exit(f"the limit {name} of {value} is above the machine's own hard limit (ulimit -H)")
    os.write(channel, b"+")  # the clock starts here
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel drops it if it is sent to init from inside the sandbox
    sys.argv = ["program.py"]
    sys.path.append(f"{os.path.dirname(os.__file__)}/site-packages")
    module, _, name = mode.partition(".")
    function = getattr(importlib.import_module(f"sspo_sandbox.inside.{module}"), name)
    if mode in ("program.run", "cells.serve"):
        _continue_in_child()
        prepare_for_program()
    function(job, channel)


def _continue_in_child() -> None:
    """Returns in a child process. The parent reaps dead processes and exits with the child's exit code."""
    child = os.fork()
    if child == 0:
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
