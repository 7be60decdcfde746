"""Runs the command line, and turns errors that the user can fix into one line."""

import argparse
import os
import sys

from megatron_sspo.cli.extras import check_installed, error_of
from megatron_sspo.cli.parser import parser
from megatron_sspo.cli.refusals import refusal_as_user_error
from megatron_sspo.errors import UserError, escape_unprintable, os_errors_as_user_errors
from megatron_sspo.processes.surroundings import prepare_process


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    A UserError becomes one line on stderr and exit code 2; Ctrl-C is exit code 130.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with os_errors_as_user_errors():
            prepare_process()
            options = _parse(arguments)
            if options.extra:
                check_installed(options.command, options.extra)
            code = options.run(options, arguments)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return 130
    except Exception as raised:
        if _comes_of_an_interrupt(raised):
            return 130
        error = _user_error(raised)
        if error is None:
            raise
        from megatron_sspo.processes import local

        local.report(str(error))  # does not return if `launch` started this process
        rank = os.environ.get("RANK", "0")
        where = f" (process {rank})" if rank != "0" else ""
        print(f"megatron-sspo{where}: {escape_unprintable(str(error))}", file=sys.stderr, flush=True)
        return 2


def _user_error(error: Exception) -> UserError | None:
    """Returns the error that the user can fix, or None for an error of this package or of the user's own code."""
    if isinstance(error, UserError):
        return error
    return error_of(error) if isinstance(error, ModuleNotFoundError) else refusal_as_user_error(error)


def _comes_of_an_interrupt(error: BaseException) -> bool:
    """Returns whether an error was raised while Ctrl-C was handled, as Transformers does while it is imported."""
    chain: list[BaseException] = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    return any(isinstance(each, KeyboardInterrupt) for each in chain)


def _parse(arguments: list[str]) -> argparse.Namespace:
    try:
        return parser().parse_args(arguments)
    finally:
        sys.stdout.flush()  # of --help, after which argparse exits: a full disk is an error here, too
