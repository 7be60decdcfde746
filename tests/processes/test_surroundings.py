"""Limits of a process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_open_files_and_locked_memory_are_limited_by_the_hard_limit_alone() -> None:
    """Slurm gives a job the soft limits of the login node, and NCCL locks its buffers for InfiniBand."""
    program = (
        "import resource as r; from megatron_sspo.processes.surroundings import prepare_process; prepare_process()"
        "; print(*r.getrlimit(r.RLIMIT_NOFILE), *r.getrlimit(r.RLIMIT_MEMLOCK))"
    )
    shell = f"ulimit -Sn 64; ulimit -Sl 64; exec {sys.executable} -c '{program}'"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=ROOT, check=True)
    files, most_files, memory, most_memory = done.stdout.split()
    assert files == most_files != "64" and memory == most_memory != str(64 * 1024)
