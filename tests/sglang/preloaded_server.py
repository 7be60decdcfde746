"""Forks SGLang's servers from a process that has imported SGLang; runs in SGLang's own Python environment.

    python preloaded_server.py SOCKET

SOCKET is the number of an open SOCK_SEQPACKET socket. A request is {"arguments": [...], "environment": {...}} in JSON,
with two descriptors: the output of the new process, and a pipe. The answer is the number of the process, which runs a
script with these arguments as a new interpreter would. Its exit code, or −n after signal n, is written to the pipe.
"""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback

MAX_BYTES = 1 << 20  # of a request
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Forks a process for each request until the other end of the socket is closed. The forks die with this process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.scheduler  # noqa: F401

    gc.collect()
    gc.freeze()
    pipes: dict[int, int] = {}
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        ready, _, _ = select.select([requests, ended], [], [])
        if ended in ready:
            os.read(ended, 1024)
            report(pipes)
        if requests in ready:
            content, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, 2)
            if not content:
                return
            if not (pid := os.fork()):
                requests.close()
                run(json.loads(content), *descriptors)
            os.close(descriptors[0])
            pipes[pid] = descriptors[1]
            requests.send(str(pid).encode())


def report(pipes: dict[int, int]) -> None:
    """Writes the exit codes of the processes that have ended."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            os.write(pipes[pid], str(os.waitstatus_to_exitcode(status)).encode())
            os.close(pipes.pop(pid))


def run(request: dict, output: int, pipe: int) -> None:
    """Runs the script of a request in this process, and ends it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.close(pipe)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(descriptor, number)
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # to be read from the new TMPDIR
        sys.argv = request["arguments"]
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
