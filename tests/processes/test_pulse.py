"""The program that ends a process whose Python threads cannot run."""

import os
import subprocess
import sys
from pathlib import Path

# The pulse's program must be gone at once: later it would take the silence for a hang, and kill the process.
_PROGRAM = """
import os, time
from pathlib import Path
from megatron_sspo.processes.watch.pulse import Pulse

signals, _ = os.pipe()
pulse = Pulse(signals, log=Path("log.txt"), what="rank 0", timeout=1.0, stop_timeout=1.0, reports=None, exit_code=87)
pulse.beat()
child = os.fork()  # as of a reward's pool: it keeps a copy of the pipe
if child == 0:
    time.sleep(5)
    os._exit(0)
pulse.close()
pulse.close()
time.sleep(3)
os.waitpid(child, 0)
print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), end="went on", flush=True)
"""


_ENDED = """
import os
from pathlib import Path
from megatron_sspo.processes.watch.pulse import Pulse

signals, _ = os.pipe()
Pulse(signals, log=Path("log.txt"), what="rank 0", timeout=60.0, stop_timeout=60.0, reports=None, exit_code=87)
os._exit(0)
"""


def test_a_closed_pulse_leaves_nothing_although_a_forked_child_has_its_pipe(tmp_path) -> None:
    done = _run(_PROGRAM, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on", "")


def test_a_process_that_ends_in_the_middle_of_a_run_is_reported(tmp_path) -> None:
    """A process that is killed, or whose reward calls os._exit(0), says nothing itself."""
    message = "rank 0 has ended in the middle of the run: it was killed, perhaps because memory ran out, or code"
    assert message in _run(_ENDED, tmp_path).stderr  # which is complete when the program has ended, too
    assert message in (tmp_path / "log.txt").read_text()


def _run(program: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
