"""A broadcast to servers of which one ends, hangs or fails: it ends within a bounded time."""

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from megatron_sspo.rollout.weight_sync import distributed, outbox
from megatron_sspo.rollout.weight_sync.distributed import DistributedTransport
from megatron_sspo.rollout.weight_sync.session import SyncSession
from megatron_sspo.rollout.weight_sync.signals import Signals
from tests.rollout.receivers import Receiver

NUMBERS = 4_000_000  # of a bucket: more than the buffers of a connection hold


@pytest.fixture
def clients():
    found = []
    yield found
    for client in found:
        client.stop()


def stream(count):
    return [(f"w{number}", torch.ones(NUMBERS)) for number in range(count)]


def sync(submit, clients, *receivers, count=3):
    """Sends `count` buckets, and returns the session and how long that took after the servers had started."""
    size = torch.ones(NUMBERS).nbytes
    for receiver in receivers:
        clients.append(receiver)
        receiver.start()
    session = SyncSession(dict(enumerate(receivers)), submit)
    transport = DistributedTransport(bucket_bytes=size, tp_size=1)
    started = time.monotonic()
    transport.send(session, stream(count), "run-1")
    seconds = time.monotonic() - started
    transport.close()
    return session, seconds


def test_servers_leave_groups_that_are_not_used_any_more(submit, clients):
    """Covers the memory of a server's GPUs, which a group of NCCL takes until the server is asked to leave it."""
    receivers = [Receiver(), Receiver()]
    transport = DistributedTransport(bucket_bytes=1, tp_size=1)
    for count, receiver in enumerate(receivers, 1):
        clients.append(receiver)
        receiver.start()
        session = SyncSession(dict(enumerate(receivers[:count])), submit)
        transport.send(session, [("w", torch.ones(3))], f"run-{count}")
        assert session.failures == {} and all(len(one.groups) == 1 for one in receivers[:count])
    transport.close(session)
    assert [one.groups for one in receivers] == [[], []]


def test_a_server_that_fails_while_its_rank_still_waits(submit, clients, monkeypatch):
    """Covers NCCL, which would not notice: the rank neither receives nor closes its connection."""
    monkeypatch.setattr(distributed, "_ANSWER_SECONDS", 5.0)
    session, seconds = sync(submit, clients, Receiver("hang", fatal=0, answers=True))
    assert session.servers == {} and "ended" in str(session.failures[0])
    assert seconds < 60


def test_a_server_that_hangs(submit, clients, monkeypatch):
    monkeypatch.setattr(distributed, "_ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(outbox, "_BROADCAST_SECONDS", 3.0)
    session, seconds = sync(submit, clients, Receiver("hang", fatal=1))
    assert session.servers == {} and "did not answer within" in str(session.failures[0])
    assert 5.0 <= seconds < 60


# ------------------------------------------------------------------ the parts


def test_a_turn_does_not_wait_for_a_thread_that_waits_for_a_key(monkeypatch):
    """NCCL waits so for another rank while it makes a communicator, and that rank may need a turn first."""
    local = "127.0.0.1"
    store = dist.TCPStore(local, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    other = dist.TCPStore(local, store.port, is_master=False, wait_for_workers=False)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: dist.PrefixStore("default", store))
    waiting = threading.Thread(target=store.get, args=["id of a communicator"])
    waiting.start()
    try:
        time.sleep(0.5)
        started = time.monotonic()
        signals = Signals()
        signals.give_turn()
        signals.await_turn(0, seconds=5.0)
        assert time.monotonic() - started < 5.0
    finally:
        other.set("id of a communicator", "1")
        waiting.join()
