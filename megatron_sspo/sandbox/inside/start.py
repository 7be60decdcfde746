"""The first thing that runs in a sandbox: sets the limits, then does what the mode says.

    python -c ... MODE JOB CHANNEL LIMITS

JOB is a file descriptor with what there is to do, CHANNEL one for what is found, LIMITS the limits by the names of
Python's `resource`.
"""

import json
import os
import resource
import sys


def main() -> None:
    """Never returns where the mode ends by itself; a program in mode "run" ends as Python ends."""
    mode, job, channel, limits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    for name, value in limits.items():
        soft_first = name == "RLIMIT_CPU"  # a signal that tells why, and a second later the one that cannot be ignored
        resource.setrlimit(getattr(resource, name), (value, value + soft_first))
    os.write(channel, b"+")  # the clock starts here
    sys.argv = ["program.py"]
    library = os.path.dirname(os.__file__)
    sys.path.append(f"{library}/site-packages")
    if mode == "run":
        from megatron_sspo.sandbox.inside.program import run

        _forget_us()
        run(job, channel)
    elif mode == "tests":
        from megatron_sspo.sandbox.inside.judge import judge

        judge(job, channel)
    elif mode == "cases":
        from megatron_sspo.sandbox.inside.cases import run_cases

        run_cases(job, channel)
    elif mode == "cells":
        from megatron_sspo.sandbox.inside.cells import serve

        _forget_us()
        serve(job, channel)


def _forget_us() -> None:
    sys.path.remove("/sandbox")
