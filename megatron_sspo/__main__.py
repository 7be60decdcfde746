"""`megatron-sspo`: new, train, launch, sweep, serve, evaluate, table, convert, verify, plot."""

import sys


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code. Ctrl-C is 130, even while the modules are being imported."""
    try:
        from megatron_sspo.cli.command_line import run

        return run(arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
