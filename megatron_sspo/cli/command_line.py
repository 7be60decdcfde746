"""Runs the command line, and turns errors that the user can fix into one line."""

import os
import sys

from megatron_sspo.cli.parser import parser
from megatron_sspo.errors import UserError, escape_unprintable, os_errors_as_user_errors
from megatron_sspo.processes.surroundings import prepare_process


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    A UserError becomes one line on stderr and exit code 2; Ctrl-C is exit code 130.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    extra = "train"
    try:
        with os_errors_as_user_errors():
            prepare_process()
            options = parser().parse_args(arguments)
            extra = options.extra
            code = options.run(options, arguments)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return 130
    except (UserError, ModuleNotFoundError) as raised:
        if isinstance(raised.__context__, KeyboardInterrupt):  # which Transformers turns into an error of its import
            return 130
        error = str(raised)
        if isinstance(raised, ModuleNotFoundError):  # of a command's own module; that of a user's file is a UserError
            extra = "hub" if raised.name == "datasets" else extra
            library = (raised.name or "").partition(".")[0]
            ours = library.startswith("sspo_")
            how = f"pip install {library.replace('_', '-')}" if ours else f"pip install 'megatron-sspo[{extra}]'"
            error = f"this command needs {raised.name}, which is not installed: {how}"
        from megatron_sspo.processes import local

        local.report(error)  # does not return if `launch` started this process
        rank = os.environ.get("RANK", "0")
        where = f" (process {rank})" if rank != "0" else ""
        print(f"megatron-sspo{where}: {escape_unprintable(error)}", file=sys.stderr, flush=True)
        return 2
