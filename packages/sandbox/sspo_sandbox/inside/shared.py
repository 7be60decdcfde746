"""The containers that both processes have: each has a copy, and a message carries what has changed since the last."""

from __future__ import annotations

import collections
import operator
import sys

from sspo_sandbox.inside.lazy import TYPE_CHECKING, Any
from sspo_sandbox.inside.wire import Broken

if TYPE_CHECKING:
    from sspo_sandbox.inside.peer import Peer

CONTAINERS = {
    kind.__name__: kind
    for kind in (
        *(list, dict, set, bytearray),
        *(collections.deque, collections.Counter, collections.OrderedDict, collections.defaultdict),
    )
}


class Shared:
    """The containers that both processes have, by number. A message carries the content of those that have changed.

    A container that one of the two no longer holds is forgotten by both.

    Attributes:
        containers: for each number the container and its items at the last message.
    """

    def __init__(self, peer: Peer, first: int) -> None:
        self.containers: dict[int, list[Any]] = {}
        self._peer, self._next = peer, first  # even numbers are the judge's, odd ones the program's
        self._numbers: dict[int, int] = {}
        self._new: list[int] = []

    def number(self, container: Any) -> int:
        """Returns the number of a container; a new one is sent with the message."""
        number = self._numbers.get(id(container))
        if number is None:
            number, self._next = self._next, self._next + 2
            self._add(number, container)
            self._new.append(number)
        return number

    def take_changes(self) -> list[Any]:
        """Returns number, kind and content of each container that is new, or has changed since the last message."""
        found = []
        for number, (container, before) in list(self.containers.items()):
            if before is not None and not _are_same(_items(container), before):
                found.append(self._content(number))
        while self._new:  # which may contain further new ones
            found.append(self._content(self._new.pop()))
        return found

    def take_unheld(self) -> list[int]:
        """Forgets the containers that nothing but this table holds, and returns their numbers."""
        found = [number for number, entry in self.containers.items() if sys.getrefcount(entry[0]) <= 2]
        self.forget(found)
        return found

    def forget(self, numbers: list[int]) -> None:
        """Removes containers from the table."""
        for number in numbers:
            if entry := self.containers.pop(number, None):
                del self._numbers[id(entry[0])]

    def update(self, changes: list[Any]) -> None:
        """Makes and fills the containers of a message."""
        for number, kind, about, content in changes:
            if number not in self.containers:
                self._add(number, self._make(kind, about, content))
            elif kind != _kind(self.containers[number][0]):
                raise Broken("a container has become another one")
        for number, kind, about, content in changes:
            entry = self.containers[number]
            _fill(self._peer, entry[0], kind, about, content)
            entry[1] = _copy(_items(entry[0]))

    def _add(self, number: int, container: Any) -> None:
        self.containers[number] = [container, None]
        self._numbers[id(container)] = number

    def _content(self, number: int) -> list[Any]:
        entry = self.containers[number]
        items = entry[1] = _copy(_items(entry[0]))
        kind, about = _kind(entry[0]), None
        if kind == "array":
            about = [entry[0].dtype.str if entry[0].dtype.names is None else entry[0].dtype.descr, entry[0].shape]
        elif kind == "deque":
            about = entry[0].maxlen
        elif kind == "defaultdict":
            about = self._peer.encode(entry[0].default_factory)
        if isinstance(items, bytes):
            return [number, kind, about, items.hex()]
        return [number, kind, about, [self._peer.encode(item) for item in items]]

    def _make(self, kind: str, about: Any, content: Any) -> Any:
        if kind == "array":
            return make_array(self._peer, about[0], about[1], content)
        if kind == "deque":
            return collections.deque(maxlen=about)
        return CONTAINERS[kind](self._peer.decode(about)) if kind == "defaultdict" else CONTAINERS[kind]()


def _kind(container: Any) -> str:
    return "array" if is_array(container) else type(container).__name__


def _items(container: Any) -> Any:
    """Returns what a container holds, as one list, or as bytes."""
    if isinstance(container, dict):
        return [part for pair in container.items() for part in pair]
    if isinstance(container, bytearray):
        return bytes(container)
    if is_array(container):
        return container.ravel().tolist() if container.dtype.hasobject else container.tobytes()
    return container if isinstance(container, list) else list(container)


def _copy(items: Any) -> Any:
    return items if isinstance(items, bytes) else list(items)


def _are_same(items: Any, before: Any) -> bool:
    if isinstance(items, bytes):
        return items == before
    return len(items) == len(before) and all(map(operator.is_, items, before))


def _fill(peer: Peer, container: Any, kind: str, about: Any, content: Any) -> None:
    if kind == "bytearray":
        container[:] = bytes.fromhex(content)
    elif kind == "array":
        container[...] = make_array(peer, about[0], about[1], content)
    else:
        items = [peer.decode(item) for item in content]
        container.clear()
        if isinstance(container, dict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                container[key] = value
        elif isinstance(container, set):
            container.update(items)
        else:
            container.extend(items)


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is getattr(numpy, "ndarray", None)


def make_array(peer: Peer, dtype: Any, shape: list[int], content: Any) -> Any:
    import numpy

    kind = numpy.dtype([tuple(field) for field in dtype] if isinstance(dtype, list) else dtype)
    if not isinstance(content, str):
        made = numpy.empty(len(content), object)
        for place, item in enumerate(content):
            made[place] = peer.decode(item)
        return made.reshape(shape)
    if kind.hasobject:
        raise Broken("an array's content is no data")
    return numpy.frombuffer(bytes.fromhex(content), kind).reshape(shape).copy()
