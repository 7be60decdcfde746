"""The process that writes a checkpoint, when code of the user interferes."""

from pathlib import Path

import pytest

from tests.forking import run_python

_PROGRAM = """
import os, signal, threading, time
import torch.distributed as dist
from pathlib import Path
from types import SimpleNamespace
from megatron_sspo.checkpoint.saving import AsyncSave, ResultQueue

BEFORE
results = ResultQueue()
dist.get_rank = lambda: 0

def write(content, path):
    time.sleep(0.5)
    results.put({})

request = SimpleNamespace(async_fn=write, async_fn_args=("", {}), async_fn_kwargs={}, preload_fn=None)
save = AsyncSave(request, results, Path("."))
AFTER
while not save._is_written():
    time.sleep(0.05)
save._process.join()
print(results.get_nowait())
"""
_REAP = "threading.Thread(target=os.waitpid, args=(-1, 0), daemon=True).start()"


@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", ""), ("", _REAP)]
)
def test_a_writer_whose_exit_code_something_else_has_taken(tmp_path: Path, before: str, after: str) -> None:
    """Checks that its end is seen; the save would otherwise wait for ten minutes, and then count as hung."""
    program = _PROGRAM.replace("BEFORE", before).replace("AFTER", after)
    done = run_python("-c", program, folder=tmp_path, timeout=60)
    assert done.stdout == "{}\n", done.stderr
