"""A rank of a run of two processes, for a wait of more than 3 s where a process group begins or ends.

python waiting.py SCENARIO LOG
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from megatron_sspo.policy import distributed
from megatron_sspo.processes import agree
from megatron_sspo.run import Parallel

scenario, log = sys.argv[1], Path(sys.argv[2])
run: Any = SimpleNamespace(parallel=Parallel(data=2), seed=0, distributed_timeout=60.0, stop_timeout=3.0)
if scenario == "start":
    join = distributed._join

    def join_and_wait_no_longer(*arguments: Any) -> Any:
        joined = join(*arguments)
        run.distributed_timeout = 3.0
        return joined

    distributed._join = join_and_wait_no_longer


def wait_at_the_last_barrier() -> None:
    barrier, calls = agree.barrier, []

    def count() -> None:
        calls.append(None)
        if len(calls) == 2:
            time.sleep(1000)
        barrier()

    agree.barrier = count


with distributed.process_group(run, log, lambda why, code: print(f"REPORT {code} {why}", flush=True)):
    run.distributed_timeout = 3.0 if agree.is_main() else 60.0  # of the end, which rank 0 has to find
    if scenario == "end" and not agree.is_main():
        wait_at_the_last_barrier()
