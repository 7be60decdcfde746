"""Missing working folders, closed standard streams, inherited signals, and limits on open files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import sys
from megatron_sspo.errors import UserError
from megatron_sspo.processes.surroundings import check_open_files, prepare_process
try:
    prepare_process()
    check_open_files()
    import os
    opened = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    os.write(opened, b"%d" % opened)
    print("\\u0394\\u00e9")
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""
ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, shell: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs the program in a shell that first does `shell`; "$@" is the program."""
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "file")]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(["bash", "-c", shell, "_", *command], capture_output=True, env=variables, check=False)


def test_a_sound_process(tmp_path: Path) -> None:
    done = run(tmp_path, '"$@"', PYTHONUTF8="1")
    assert done.returncode == 0 and done.stdout == "Δé\n".encode(), done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    assert run(tmp_path, f'"$@" {closed}').returncode == 0
    assert int((tmp_path / "file").read_text(encoding="ascii")) > 2


def test_a_folder_that_has_gone(tmp_path: Path) -> None:
    done = run(tmp_path, f'mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; "$@"')
    assert done.returncode == 2
    assert done.stderr.endswith(b"does not exist any more: change to an existing one\n")


@pytest.mark.parametrize(("encoding", "said"), [("ascii", "Δé".encode()), ("latin-1", b"\\u0394\xe9")])
def test_what_a_stream_cannot_encode(tmp_path: Path, encoding: str, said: bytes) -> None:
    done = run(tmp_path, '"$@"', PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and done.stdout == said + b"\n", done.stderr


def test_the_limit_on_open_files(tmp_path: Path) -> None:
    assert run(tmp_path, 'ulimit -Sn 64; "$@"').returncode == 0  # the hard limit is higher
    done = run(tmp_path, 'ulimit -n 64; "$@"')
    assert done.returncode == 2
    assert done.stderr.startswith(b"the limit on open files is 64, but a run needs 256: raise it")


def test_memory_may_be_locked_up_to_the_hard_limit(tmp_path: Path) -> None:
    """Slurm gives a job the soft limits of the login node, and NCCL locks its buffers for InfiniBand."""
    program = (
        "import resource as r; from megatron_sspo.processes.surroundings import prepare_process; prepare_process()"
    )
    program += "; print(*r.getrlimit(r.RLIMIT_MEMLOCK))"
    shell = f"ulimit -Sl 64; exec {sys.executable} -c '{program}'"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=ROOT, check=True)
    soft, hard = done.stdout.split()
    assert soft == hard != str(64 * 1024)


_SIGNALS = """
import os, signal, subprocess, sys
if sys.argv[1:]:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD})
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
from megatron_sspo.processes.surroundings import prepare_process
prepare_process()
print(subprocess.run(["false"]).returncode, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_signals_that_the_parent_ignores_or_blocks() -> None:
    """A service, or `trap '' CHLD` in a shell, passes them on: exit codes would be 0, and SIGTERM would not arrive."""
    command = [sys.executable, "-c", _SIGNALS, _SIGNALS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "1 set()\n"


def test_a_stream_that_code_of_the_user_closes() -> None:
    program = "import sys; from megatron_sspo.processes.output import survive_closed_output; survive_closed_output()"
    program += "; sys.stdout.close(); print('lost'); sys.stdout.flush(); print('said', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr == "said\n"
