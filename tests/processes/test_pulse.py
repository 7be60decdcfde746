"""The program that ends a process whose Python threads cannot run."""

import os
import subprocess
import sys

# The pulse's program must be gone at once: later it would take the silence for a hang, and kill the process.
_PROGRAM = """
import os, time
from pathlib import Path
from megatron_sspo.processes.pulse import Pulse

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


def test_a_closed_pulse_leaves_nothing_although_a_forked_child_has_its_pipe(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on", "")
