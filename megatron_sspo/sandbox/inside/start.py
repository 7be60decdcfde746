"""The first process of a sandbox: sets the limits, then does what the mode says.

    python -c ... MODE JOB CHANNEL LIMITS

JOB is a file descriptor with what there is to do, CHANNEL one for what is found, LIMITS the limits by the names of
Python's `resource`.
"""

import contextlib
import json
import os
import resource
import signal
import sys


def main() -> None:
    """Never returns in the process that it is called in, which is the sandbox's init: all others end with it."""
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
        _leave_init_behind()
        if mode == "run":
            from megatron_sspo.sandbox.inside.program import run

            forget_us()
            run(job, channel)
        else:
            from megatron_sspo.sandbox.inside.cells import serve

            forget_us()
            serve(job, channel)


def forget_us() -> None:
    """Makes this process ready for a program that is not ours."""
    sys.path.remove("/sandbox")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _be_deaf()


def _be_deaf() -> None:
    """Has this process do nothing on the signals that Slurm sends to every process of a job, which are not for it.

    Those that it starts do what everybody does: a program may end its children so.
    """

    def do_nothing(*_: object) -> None:
        pass

    def turn(old: object, new: object) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            if signal.getsignal(number) is old:  # else the program has a handler of its own
                with contextlib.suppress(ValueError):  # in a thread that is not the first
                    signal.signal(number, new)  # pyright: ignore[reportArgumentType]

    turn(signal.SIG_IGN, do_nothing)  # which goes with exec, and with fork by this
    os.register_at_fork(
        before=lambda: turn(do_nothing, signal.SIG_DFL), after_in_parent=lambda: turn(signal.SIG_DFL, do_nothing)
    )


def _leave_init_behind() -> None:
    """Returns in a child. Its parent buries the dead, and ends as the child does."""
    child = os.fork()
    if child == 0:
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
