"""A broadcast to servers of which one ends, hangs or fails: it ends within a bounded time."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest
import torch

from megatron_sspo.rollout.servers.client import ServerError
from megatron_sspo.rollout.weight_sync import distributed
from megatron_sspo.rollout.weight_sync.bounded import AbandonedWork, run_bounded
from megatron_sspo.rollout.weight_sync.distributed import DistributedTransport
from megatron_sspo.rollout.weight_sync.session import Requests, SyncSession

NEVER = 600.0
NUMBERS = 4_000_000  # of a bucket: more than the buffers of a connection hold

# A server's rank: joins the group, receives buckets, and at bucket number FATAL is killed or stops to receive.
RECEIVER = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _new_process_group_helper, _world
how, fatal, count = sys.argv[1:]
print("ready", flush=True)
address, port, size, rank, name = input().split()
store = dist.TCPStore(address, int(port), int(size), is_master=False, timeout=timedelta(seconds=60))
make = _new_process_group_helper
group, _ = make(int(size), int(rank), [], "gloo", PrefixStore(name, store), group_name=name,
                timeout=timedelta(seconds=600))
_world.pg_group_ranks[group] = {r: r for r in range(int(size))}
print("joined", flush=True)
for number in range(10):
    if number == int(fatal):
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    dist.broadcast(torch.empty(int(count), dtype=torch.uint8), src=0, group=group)
    print("received", flush=True)
"""


class Receiver:
    """A client of a server whose only part is its rank in the group."""

    def __init__(self, how="", fatal=99, answers=False, size=0):
        self.how, self.fatal, self.answers_failure, self.size = how, fatal, answers, size
        self.process = None
        self.url = f"http://{how}"

    def start(self):
        """Starts the process, and waits until it has imported torch, which takes minutes on a busy machine."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", RECEIVER, self.how, str(self.fatal), str(self.size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.process.stdout.readline()

    async def post(self, path, content, *, seconds):
        loop = asyncio.get_running_loop()
        if path == "/init_weights_update_group":
            given = (content["master_address"], content["master_port"], content["world_size"], content["rank_offset"])
            print(*given, content["group_name"], file=self.process.stdin, flush=True)
            await loop.run_in_executor(None, self.process.stdout.readline)
        if path == "/update_weights_from_distributed":
            line = loop.run_in_executor(None, self.process.stdout.readline)
            if self.answers_failure:
                await asyncio.sleep(1.0)
                raise ServerError("http://x ended")
            if not await line:
                raise ServerError("http://x: connection reset")
        return {}


@pytest.fixture
def submit():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda work: asyncio.run_coroutine_threadsafe(work, loop)
    loop.call_soon_threadsafe(loop.stop)


@pytest.fixture
def clients():
    found = []
    yield found
    for client in found:
        if client.process is not None:
            client.process.kill()
            client.process.wait()


def stream(count):
    return [(f"w{number}", torch.ones(NUMBERS)) for number in range(count)]


def sync(submit, clients, *receivers, count=3):
    """Sends `count` buckets, and returns the session and how long that took after the servers had joined."""
    size = torch.ones(NUMBERS).nbytes
    for receiver in receivers:
        receiver.size = size
        clients.append(receiver)
        receiver.start()
    session = SyncSession(dict(enumerate(receivers)), submit)
    transport = DistributedTransport(bucket_bytes=size, tp_size=1)
    transport._make_group(session)
    assert set(session.servers) == set(range(len(receivers))), session.failures
    started = time.monotonic()
    transport.send(session, stream(count), 1)
    seconds = time.monotonic() - started
    transport.close()
    return session, seconds


def test_nothing_fails(submit, clients):
    session, _ = sync(submit, clients, Receiver())
    assert set(session.servers) == {0} and session.failures == {}


def test_a_server_that_dies_in_the_middle(submit, clients, monkeypatch):
    monkeypatch.setattr(distributed, "_ANSWER_SECONDS", 5.0)
    session, seconds = sync(submit, clients, Receiver("die", fatal=1))
    assert session.servers == {} and "connection reset" in str(session.failures[0])
    assert seconds < 60


def test_a_server_that_fails_while_its_rank_still_waits(submit, clients, monkeypatch):
    """Covers NCCL, which would not notice: the rank neither receives nor closes its connection."""
    monkeypatch.setattr(distributed, "_ANSWER_SECONDS", 5.0)
    session, seconds = sync(submit, clients, Receiver("hang", fatal=0, answers=True))
    assert session.servers == {} and "ended" in str(session.failures[0])
    assert seconds < 60


def test_a_server_that_hangs(submit, clients, monkeypatch):
    monkeypatch.setattr(distributed, "_ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(distributed, "_BROADCAST_SECONDS", 3.0)
    session, seconds = sync(submit, clients, Receiver("hang", fatal=1))
    assert session.servers == {} and "did not answer within" in str(session.failures[0])
    assert 5.0 <= seconds < 60


# ------------------------------------------------------------------ the parts


def test_bounded_work():
    assert run_bounded(lambda: 3, has_failed=lambda: False, seconds=NEVER) == 3
    with pytest.raises(ZeroDivisionError):
        run_bounded(lambda: 1 // 0, has_failed=lambda: False, seconds=NEVER)
    done = threading.Event()
    try:
        with pytest.raises(AbandonedWork, match="another process has failed"):
            run_bounded(done.wait, has_failed=lambda: True, seconds=NEVER)
        with pytest.raises(AbandonedWork, match=r"within 0\.2 s"):
            run_bounded(done.wait, has_failed=lambda: False, seconds=0.2)
    finally:
        done.set()


def test_requests_of_which_one_has_failed(submit):
    async def slow():
        await asyncio.sleep(NEVER)

    async def failed():
        return ServerError("oh")

    async def good():
        return {"a": 1}

    requests = Requests({0: submit(slow()), 1: submit(good())})
    assert not requests.has_failed()
    found = requests.answers(0.5)
    assert isinstance(found[0], ServerError) and found[1] == {"a": 1}
    requests = Requests({0: submit(slow()), 1: submit(failed())})
    while not requests.has_failed():
        time.sleep(0.01)
    assert "oh" in str(requests.answers(0.1)[1])
