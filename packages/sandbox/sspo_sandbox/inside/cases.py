"""Runs a program once for each input, each time in a fresh process and an empty folder, and reports its output.

The expected output is not here: it is compared outside of the sandbox.
"""

import contextlib
import json
import os
import select
import signal
import sys

from sspo_sandbox.inside import wire
from sspo_sandbox.inside.program import execute, prepare_for_program, read_job

_FOLDER = "/tmp"
_SHOWN_BYTES = 2000  # of what a program that failed has printed to stderr


def run_cases(job: int, channel: int) -> None:
    """Writes a line for each input to the channel: nonce, exit code and output. It stops at the first error."""
    wire.forbid_inspection()
    work = read_job(job)
    rest = work["total_bytes"]
    for stdin in work["inputs"]:
        limits = min(work["output_bytes"], rest), work["error_bytes"]
        exit_code, output, errors, is_whole = _run_case(work["program"], stdin, *limits)
        rest -= len(output)
        line = {"nonce": work["nonce"], "exit_code": exit_code, "is_whole": is_whole}
        line["stdout"] = output.decode("utf-8", "replace")
        wire.write_all(channel, json.dumps(line).encode() + b"\n")
        if exit_code != 0 or not is_whole:
            wire.write_all(2, errors[-_SHOWN_BYTES:])
            break
        _kill_all()
        _empty_folder()
    os._exit(0)


def _run_case(program: str, stdin: str, output_bytes: int, error_bytes: int) -> tuple[int, bytes, bytes, bool]:
    """Returns the exit code, what was printed to stdout and to stderr, and whether that is complete."""
    stdin_file = os.open(_FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600)
    wire.write_all(stdin_file, stdin.encode("utf-8", "surrogatepass"))
    os.lseek(stdin_file, 0, os.SEEK_SET)
    (stdout, to_stdout), (stderr, to_stderr) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        for number, file in enumerate((stdin_file, to_stdout, to_stderr)):
            os.dup2(file, number)
        wire.close_all_but({0, 1, 2})
        prepare_for_program()
        execute(program, "__main__")
        sys.exit()  # Python then waits for the program's threads, and calls its exit handlers
    for file in (stdin_file, to_stdout, to_stderr):
        os.close(file)
    end = os.pidfd_open(child)
    try:
        printed, is_whole = _read({stdout: output_bytes, stderr: error_bytes}, end)
        if not is_whole:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    finally:
        for file in (end, stdout, stderr):
            os.close(file)
    return os.waitstatus_to_exitcode(status), printed[stdout], printed[stderr], is_whole


def _kill_all() -> None:
    """Kills all processes that the program has left; this process is the sandbox's init, which the kernel spares."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _empty_folder() -> None:
    """Removes all that the program has written. If it is nested too deep for that, no further case is run."""
    os.chmod(_FOLDER, 0o755)
    for parent, folders, files in os.walk(_FOLDER, topdown=False):
        for name in (*files, *folders):
            path = f"{parent}/{name}"
            os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def _read(limits: dict[int, int], end: int) -> tuple[dict[int, bytes], bool]:
    """Returns what pipes had until the program ended, and whether that is complete. It does not wait for children.

    Args:
        limits: the most bytes of each pipe.
        end: a pidfd of the program.
    """
    content = {descriptor: bytearray() for descriptor in limits}
    still_open, is_whole = set(limits), True
    for descriptor in limits:
        os.set_blocking(descriptor, False)
    ready: list[int] = []
    while is_whole and end not in ready:
        ready, _, _ = select.select([*still_open, end], [], [])
        for descriptor in tuple(still_open):
            with contextlib.suppress(BlockingIOError):
                while is_whole and (piece := os.read(descriptor, 65536)):
                    content[descriptor] += piece
                    is_whole = len(content[descriptor]) <= limits[descriptor]
                still_open.discard(descriptor)  # the program has closed it
    return {descriptor: bytes(found[: limits[descriptor]]) for descriptor, found in content.items()}, is_whole
