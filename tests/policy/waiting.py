"""A rank of a run of two processes, for a wait of more than 6 s where a process group begins or ends.

python waiting.py SCENARIO
"""

import sys
import time
from types import SimpleNamespace
from typing import Any

from megatron_sspo.policy import distributed
from megatron_sspo.processes import agree
from megatron_sspo.run import Parallel

scenario = sys.argv[1]
run: Any = SimpleNamespace(parallel=Parallel(data=2), seed=0, distributed_timeout=6.0)

with distributed.process_group(run):
    if scenario == "end" and not agree.is_main():
        agree.barrier = lambda: time.sleep(1000)
