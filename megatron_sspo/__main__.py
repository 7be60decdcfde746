"""`megatron-sspo`: new, train, launch, sweep, serve, evaluate, table, convert, verify, plot."""

import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code. Ctrl-C is 130, even while the modules are being imported."""
    try:
        from megatron_sspo.cli.command_line import run

        code = run(arguments)
    except KeyboardInterrupt:
        code = 130
    if code == 130 and arguments is None:  # otherwise a program has called this function, and goes on
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own end would print another Ctrl-C as a traceback
    return code


if __name__ == "__main__":
    sys.exit(main())
