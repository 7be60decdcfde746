"""Weight sync by broadcast: some trainer processes each send their part of the weights to all ranks of all servers."""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist

from megatron_sspo.config.naming import one_line
from megatron_sspo.processes import agree
from megatron_sspo.rollout.weight_sync import group as groups
from megatron_sspo.rollout.weight_sync.bounded import AbandonedWork, run_bounded
from megatron_sspo.rollout.weight_sync.outbox import Outbox
from megatron_sspo.rollout.weight_sync.session import (
    NamedTensor,
    Observe,
    PendingRequests,
    SyncSession,
    Transport,
    at_rank_0,
    buckets,
)
from megatron_sspo.rollout.weight_sync.signals import Signals
from megatron_sspo.weights.gather import Entry, GatherPlan, Part

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 200.0  # for all ranks of all servers to join a group
_ANSWER_SECONDS = 30.0  # for the other servers to notice that a group is lost; then they are restarted
_POLL_SECONDS = 0.1  # between two checks for failures; the end of all requests is noticed at once


@dataclass(frozen=True)
class _Plan:
    """Rank 0's decisions about a sync."""

    turns: int  # the values of `Signals` when the sync began
    stops: int
    name: str  # the common part of the groups' names; new groups have a new one
    ports: Sequence[int]  # of the stores of new groups, one for each sender; empty if the last sync's groups are used
    size: int  # the number of members of a group
    has_servers: bool  # whether there is a server to send to
    observes: bool  # whether all weights are also gathered on rank 0 afterwards


class DistributedTransport(Transport):
    """Broadcasts tensors in buckets, flattened to bytes. One rank of each pipeline stage and expert group sends.

    Each sender has a process group of its own with all ranks of all servers. A server receives one bucket at a time,
    and all servers have to receive buckets in the same order. So rank 0 alone makes the requests, waits for the answers
    to one before the next, and gives each sender its turn; meanwhile the senders gather their next buckets.

    The groups are made for the servers of a session and kept as long as they stay the same. If a server or a broadcast
    fails, all groups are lost and the other servers miss the rest of the weights: they leave the session, and wait for
    another sync. Only when all ranks have agreed that every bucket has arrived does the update end. Gloo reports a lost
    connection, but NCCL would wait for a server that has ended. So broadcasts run in threads of their own, the requests
    are watched meanwhile, and the groups are aborted when one has failed.

    A server keeps a group until it is asked to leave it, and with NCCL the group's memory on its GPUs. So it is asked
    before new groups are made, and by the engine's end. Servers reach the host of rank 0 at `address`.
    """

    def __init__(self, *, bucket_bytes: int, tp_size: int, address: str = "127.0.0.1") -> None:
        self._bucket_bytes, self._tp_size, self._address = bucket_bytes, tp_size, address
        self._name = ""
        self._senders: list[int] = []
        self._group: Any = None  # this rank's, if it is a sender
        self._failure: BaseException | None = None  # the error on this rank, in this sync
        # on rank 0
        self._members: list[Any] = []  # the clients that are in the groups
        self._stores: list[Any] = []
        self._entered: dict[Any, list[str]] = {}  # client -> the groups that it was asked to join, and not to leave
        self._leaving: list[PendingRequests] = []

    def send(
        self, session: SyncSession, tensors: Iterable[NamedTensor], version: str, observe: Observe | None = None
    ) -> None:
        """Replaces all weights of the session's servers."""
        session.begin()
        if self._sync(tensors, session, observe):
            session.end(version)
        else:
            session.abort_update()

    def participate(self, tensors: Iterable[NamedTensor]) -> None:
        """Sends this rank's part of the weights, or helps another rank to put its part together."""
        self._sync(tensors)

    def close(self, session: SyncSession | None = None) -> None:
        """Leaves the process groups; the servers of the session leave theirs."""
        if session is not None:
            self._start_leaving(session)
        self._leave(dist.destroy_process_group)
        self._finish_leaving()

    def _leave(self, end: Callable[[Any], None]) -> None:
        """Forgets the process groups, and ends the one of this rank."""
        group, self._group, self._members, self._senders, self._stores = self._group, None, [], [], []
        if group is not None:
            end(group)

    # ------------------------------------------------------------------ on every rank

    def _sync(
        self, tensors: Iterable[NamedTensor], session: SyncSession | None = None, observe: Observe | None = None
    ) -> bool:
        """Sends all weights, and returns whether every server has them. A collective; only rank 0 has a session."""
        senders = tensors.collectors() if isinstance(tensors, GatherPlan) else [0]
        signals, self._failure = Signals(), None
        plan = None if session is None else self._plan(session, senders, signals, observe is not None)
        plan = agree.broadcast_from_rank_0(plan)
        assert plan is not None
        if session is None:
            signals = Signals(plan.turns, plan.stops)
            if plan.ports:
                self._leave(dist.destroy_process_group)
        self._finish_leaving()
        self._name, self._senders = plan.name, senders
        if not isinstance(tensors, GatherPlan):
            tensors, observe = (tensors if observe is None else observe(tensors)), None
        is_complete = plan.has_servers
        if is_complete and plan.ports:
            is_complete = self._join_groups(plan, signals, session)
        is_complete = self._send_parts(plan, tensors, signals, session if is_complete else None, is_complete)
        if not is_complete:
            self._leave(groups.abort)
        elif plan.observes and isinstance(tensors, GatherPlan):
            for _ in at_rank_0(tensors, observe):
                pass
        return is_complete

    def _join_groups(self, plan: _Plan, signals: Signals, session: SyncSession | None) -> bool:
        """Makes a group for each sender, one after the other. Returns whether all were made. A collective."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        for turn, (sender, port) in enumerate(zip(self._senders, plan.ports, strict=True)):
            requests = None
            if session is not None and not signals.is_stopped():
                requests = self._invite(session, plan, sender, port)
                signals.give_turn()
            if rank == sender:
                self._join(plan, sender, port, turn, signals, requests)
            if session is not None and requests is not None:
                self._finish(session, requests, signals)
        return self._agree(signals, self._group is not None or rank not in self._senders)

    def _join(
        self, plan: _Plan, sender: int, port: int, turn: int, signals: Signals, requests: PendingRequests | None
    ) -> None:
        join = partial(groups.join, self._address, port, plan.size, _group_name(plan.name, sender))
        has_failed = signals.is_stopped if requests is None else requests.has_failed
        try:
            signals.await_turn(turn, seconds=_JOIN_SECONDS * (turn + 1))
            self._group = run_bounded(join, has_failed=has_failed, seconds=_JOIN_SECONDS)
        except (RuntimeError, TimeoutError, AbandonedWork) as error:  # a server has ended; its request has the error
            self._failure = error
            signals.stop()

    def _send_parts(
        self,
        plan: _Plan,
        tensors: Iterable[NamedTensor],
        signals: Signals,
        session: SyncSession | None,
        is_sending: bool,
    ) -> bool:
        """Gathers all parts and sends them, each while the next is gathered. Returns whether all have arrived."""
        outbox = Outbox(self._group, signals) if is_sending and self._group is not None else None
        requests = None
        for number, part in enumerate(self._parts(tensors)):
            if part.tensors is not None and outbox is not None:
                outbox.put(len(plan.ports) + number, part.tensors)
            if session is None:
                continue
            if requests is not None:
                self._finish(session, requests, signals)
            requests = None if signals.is_stopped() else self._announce(session, part, signals)
        if session is not None and requests is not None:
            self._finish(session, requests, signals)
        is_sent = outbox.close() if outbox is not None else True
        self._failure = outbox.failure if outbox is not None else None
        return self._agree(signals, is_sending and is_sent)

    def _parts(self, tensors: Iterable[NamedTensor]) -> Iterator[Part]:
        """Yields the parts of a plan. A stream has all its parts on rank 0, and none on other ranks. A collective."""
        if isinstance(tensors, GatherPlan):
            yield from map(_aligned, tensors.parts(bucket_bytes=self._bucket_bytes))
        elif agree.is_main():
            for bucket in buckets(tensors, self._bucket_bytes):
                yield _aligned(Part(0, [Entry(name, tuple(each.shape), each.dtype) for name, each in bucket], bucket))
        else:
            for _ in tensors:
                pass

    def _agree(self, signals: Signals, is_good: bool) -> bool:
        """Returns whether all is good on all ranks. A collective.

        Rank 0 logs the errors of all senders: those of NCCL may be on one side only, and the servers then only wait.
        """
        is_torchs = self._failure is not None and not isinstance(self._failure, AbandonedWork)
        reason = one_line(str(self._failure)) if is_torchs else ""
        found = agree.all_gather_objects((is_good and not signals.is_stopped(), reason))
        for rank, (_, why) in enumerate(found):
            if why and agree.is_main():
                _log.warning("rank %d could not send its weights to the servers: %s", rank, why)
        return all(good for good, _ in found)

    # ------------------------------------------------------------------ on rank 0

    def _plan(self, session: SyncSession, senders: list[int], signals: Signals, observes: bool) -> _Plan:
        """Returns the plan of a sync. New groups get new names, because servers cannot use a name twice."""
        members, ports = list(session.servers.values()), []
        if members and (self._members, self._senders) != (members, senders):
            self._start_leaving(session)
            self._leave(dist.destroy_process_group)
            self._name, self._members = f"weights-{secrets.token_hex(8)}", members
            self._stores = [groups.open_store(self._address) for _ in senders]
            ports = [store.port for store in self._stores]
        return _Plan(
            turns=signals.turns,
            stops=signals.stops,
            name=self._name,
            ports=ports,
            size=1 + self._tp_size * len(members),
            has_servers=bool(members),
            observes=observes,
        )

    def _start_leaving(self, session: SyncSession) -> None:
        """Asks servers to leave the groups that they are in. They may wait for the senders, which leave meanwhile."""
        for key, client in session.servers.items():
            for name in self._entered.get(client, ()):
                self._leaving.append(session.start_each("/destroy_weights_update_group", {key: {"group_name": name}}))
            self._entered.pop(client, None)

    def _finish_leaving(self) -> None:
        """Waits for servers that leave groups. Errors are ignored: a server that cannot leave only keeps the memory."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        for requests in self._leaving:
            requests.answers(max(0.0, deadline - time.monotonic()))
        self._leaving = []

    def _invite(self, session: SyncSession, plan: _Plan, sender: int, port: int) -> PendingRequests:
        """Asks the servers to join a sender's group."""
        for client in session.servers.values():
            self._entered.setdefault(client, []).append(_group_name(plan.name, sender))
        contents = {
            key: {
                "master_address": self._address,
                "master_port": port,
                "rank_offset": 1 + number * self._tp_size,
                "world_size": plan.size,
                "group_name": _group_name(plan.name, sender),
                "backend": groups.backend(),
            }
            for number, key in enumerate(session.servers)
        }
        return session.start_each("/init_weights_update_group", contents)

    def _announce(self, session: SyncSession, part: Part, signals: Signals) -> PendingRequests:
        """Asks the servers to receive a part, and gives its sender the turn."""
        content = {
            "names": [entry.name for entry in part.entries],
            "dtypes": [str(entry.dtype).removeprefix("torch.") for entry in part.entries],
            "shapes": [list(entry.shape) for entry in part.entries],
            "group_name": _group_name(self._name, part.rank),
            "load_format": "flattened_bucket",
            "flush_cache": False,
        }
        session.num_bytes += sum(entry.num_bytes for entry in part.entries)
        requests = session.start("/update_weights_from_distributed", content)
        signals.give_turn()
        return requests

    def _finish(self, session: SyncSession, requests: PendingRequests, signals: Signals) -> None:
        """Waits for the servers' answers; if a server or a broadcast fails, the sync is stopped."""
        seconds = None
        while not requests.wait(_POLL_SECONDS):
            if requests.has_failed() or signals.is_stopped():
                signals.stop()
                seconds = _ANSWER_SECONDS
                break
        session.finish(requests, seconds=seconds)
        if self._members != list(session.servers.values()):
            signals.stop()


def _aligned(part: Part) -> Part:
    """Sorts a part by element size: the receiver lays its tensors out without gaps, and each must be aligned."""
    order = sorted(range(len(part.entries)), key=lambda number: -part.entries[number].dtype.itemsize)
    tensors = None if part.tensors is None else [part.tensors[number] for number in order]
    return Part(part.rank, [part.entries[number] for number in order], tensors)


def _group_name(name: str, sender: int) -> str:
    return f"{name}-{sender}"
