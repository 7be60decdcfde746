"""Clients of servers whose only part is one rank in the process groups of weights."""

import asyncio
import json
import os
import subprocess
import sys
import threading

from megatron_sspo.rollout.servers.client import ServerError
from megatron_sspo.rollout.servers.environment_variables import without_trainer_variables

# A server's rank: joins groups and receives buckets, and at bucket number FATAL is killed or stops to receive. It calls
# torch as SGLang's WeightUpdater does (model_runner_components/weight_updater.py): a default group of its own, groups
# by torch's helper, and a flat tensor of bytes on its device, broadcast from rank 0.
PROGRAM = """
import hashlib, json, math, os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _new_process_group_helper, _world
how, fatal = sys.argv[1], int(sys.argv[2])
groups, number = {}, 0
if torch.cuda.is_available():
    torch.cuda.set_device(0)
print("ready", flush=True)
for line in sys.stdin:
    given = json.loads(line)
    name = given["group_name"]
    if "master_port" in given:
        size, rank = given["world_size"], given["rank_offset"]
        store = dist.TCPStore(given["master_address"], given["master_port"], size, is_master=False,
                              timeout=timedelta(seconds=60))
        if not dist.is_initialized():
            dist.init_process_group(given["backend"], store=dist.HashStore(), rank=0, world_size=1)
        group, _ = _new_process_group_helper(size, rank, [], dist.Backend(given["backend"]), PrefixStore(name, store),
                                             group_name=name, timeout=timedelta(seconds=600))
        _world.pg_group_ranks[group] = {r: r for r in range(size)}
        groups[name] = group
        print("joined", flush=True)
        continue
    if number == fatal:
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    number += 1
    dtypes = [getattr(torch, dtype) for dtype in given["dtypes"]]
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(given["shapes"], dtypes)]
    assert not any(sum(sizes[:n]) % dtype.itemsize for n, dtype in enumerate(dtypes)), "SGLang wants tensors aligned"
    on = "cuda" if torch.cuda.is_available() else "cpu"
    flat = torch.empty(sum(sizes), dtype=torch.uint8, device=on)
    dist.broadcast(flat, src=0, group=groups[name])
    found = {n: hashlib.sha256(part.numpy()).hexdigest() for n, part in zip(given["names"], flat.cpu().split(sizes))}
    print(json.dumps(found), flush=True)
"""


class Receiver:
    """A client of such a server.

    Attributes:
        digests: name -> SHA-256 of each tensor that it has received.
        ended: whether its update was ended, so that it would serve the weights.
        groups: the names of the groups that it was asked to join, and not to leave.
    """

    def __init__(self, how="", fatal=99, answers=False):
        self.how, self.fatal, self.answers_failure = how, fatal, answers
        self.process = None
        self.url = f"http://{how}"
        self.digests, self.ended = {}, False
        self.groups = []

    def start(self):
        """Starts the process, and waits until it has imported torch, which takes minutes on a busy machine."""
        # as `build_servers` does for servers on the trainer's GPUs
        host = {"NCCL_HOSTID": f"server-{id(self)}"} if os.environ.get("NCCL_HOSTID") else {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.how, str(self.fatal)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=without_trainer_variables(os.environ) | host,
        )
        self.process.stdout.readline()

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def post(self, path, content, *, seconds):
        if path == "/begin_weight_update":
            self.digests, self.ended = {}, False
        if path == "/update_weight_version":
            self.ended = True
        if path == "/destroy_weights_update_group":
            self.groups.remove(content["group_name"])
        if path == "/init_weights_update_group":
            self.groups.append(content["group_name"])
        if path not in ("/init_weights_update_group", "/update_weights_from_distributed"):
            return {}
        assert content["backend" if path.startswith("/init") else "group_name"]
        loop = asyncio.get_running_loop()
        print(json.dumps(content), file=self.process.stdin, flush=True)
        line = loop.run_in_executor(None, self.process.stdout.readline)
        if self.answers_failure and path == "/update_weights_from_distributed":
            await asyncio.sleep(1.0)
            raise ServerError("http://x ended")
        answer = await line
        if not answer:
            raise ServerError("http://x: connection reset")
        if path == "/update_weights_from_distributed":
            received = json.loads(answer)
            assert not received.keys() & self.digests.keys(), "a tensor was sent twice"
            self.digests |= received
        return {}


def submitter():
    """Returns a function that starts coroutines in a thread of their own, and one that ends the thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return (
        lambda work: asyncio.run_coroutine_threadsafe(work, loop),
        lambda: loop.call_soon_threadsafe(loop.stop),
    )
