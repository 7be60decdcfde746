"""Containers that both processes hold: each side has a copy, and applies the other side's changes to it.

A container gets a number when it is first passed. With every message, each side sends the new content of those of its
copies that have changed since the message before. A copy that only this table still references is dropped. So an
argument that the program changes in place also changes in the tests, and `f() is f()` holds for a list that the program
keeps. A list that the test appends to is longer for the program too.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable

from megatron_sspo.sandbox.inside.proxies import values

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (list, dict, set, bytearray, deque, OrderedDict, defaultdict, Counter)
}
_MAPPINGS = frozenset(("dict", "OrderedDict", "defaultdict", "Counter"))
_REFERENCES_OF_UNUSED = 2  # a container that is no longer used: its entry's reference, and getrefcount's argument


class _Entry:
    """A container, and the items that it had when both copies were last equal."""

    __slots__ = ("container", "synced_items", "tag")

    def __init__(self, container: Any, tag: str) -> None:
        self.container = container
        self.tag = tag
        self.synced_items: list[Any] | None = None  # None until the message is complete


def tag_of(value: Any) -> str | None:
    """Returns the name of a value's container type; None if it is not a container."""
    for kind in type(value).__mro__:
        if _KINDS.get(kind.__name__) is kind:
            return kind.__name__
        if kind.__name__ == "ndarray" and kind.__module__ == "numpy" and type(value) is kind:
            return "ndarray"
    return None


class SharedContainers:
    """One side's table of containers.

    Args:
        parity: 0 or 1, the last bit of the numbers that this side assigns.
        encode, decode: functions that convert items.
        on_change: called with a container, its type and its former items before the other side's change is applied.
    """

    def __init__(
        self,
        parity: int,
        encode: values.Convert,
        decode: values.Convert,
        on_change: Callable[[Any, str, list[Any]], None],
    ) -> None:
        self._next = parity
        self._encode = encode
        self._decode = decode
        self._on_change = on_change
        self._parity = parity
        self._entries: dict[int, _Entry] = {}
        self._numbers: dict[int, int] = {}
        self._unsynced: list[_Entry] = []

    # ------------------------------------------------------------------ one container

    def encode(self, value: Any, tag: str, derived: Any = None) -> list[Any]:
        """Returns the container's number, with its content if the other side does not have it yet."""
        number = self._numbers.get(id(value))
        if number is not None:
            return ["ref", number]
        number, self._next = self._next, self._next + 2
        self._add(number, value, tag)
        return ["new", number, tag, self._content(value, tag), derived]

    def contains(self, value: Any) -> bool:
        """Returns whether the other side has this container already."""
        return id(value) in self._numbers

    def decode(self, message: list[Any], make_derived: Callable[[Any, type], Any]) -> Any:
        """Returns the container of a message of `encode`."""
        match message:
            case ["ref", int(number)] if number in self._entries:
                return self._entries[number].container
            case ["new", int(number), "ndarray", [*content], None] if self._is_theirs(number):
                array = values.decode_array(content, self._decode)
                self._add(number, array, "ndarray")
                return array
            case ["new", int(number), str(tag), [*content], derived] if self._is_theirs(number) and tag in _KINDS:
                kind = _KINDS[tag]
                container = kind() if derived is None else make_derived(derived, kind)
                if tag == "deque" and content[0] is not None:
                    container = deque(maxlen=content[0]) if derived is None else container
                self._add(number, container, tag)
                self._fill(container, tag, content)
                return container
        raise ValueError("not a container")

    def _is_theirs(self, number: int) -> bool:
        return number & 1 != self._parity and number not in self._entries

    def _add(self, number: int, value: Any, tag: str) -> None:
        entry = _Entry(value, tag)
        self._entries[number] = entry
        self._numbers[id(value)] = number
        self._unsynced.append(entry)

    # ------------------------------------------------------------------ all of them

    def changes(self) -> list[Any]:
        """Returns the changes that this side has made to the containers since the last message."""
        found: list[Any] = []
        for number, entry in list(self._entries.items()):
            if entry.synced_items is not None and _differ(
                entry.tag, entry.synced_items, items_of(entry.container, entry.tag)
            ):
                found.append([number, self._content(entry.container, entry.tag)])
                entry.synced_items = None
                self._unsynced.append(entry)
        return found

    def drop_unused(self) -> list[int]:
        """Removes the containers that nothing else on this side references; returns their numbers."""
        dropped: list[int] = []
        for number in list(self._entries):
            entry = self._entries[number]
            if sys.getrefcount(entry.container) <= _REFERENCES_OF_UNUSED:
                self.remove(number)
                dropped.append(number)
        return dropped

    def remove(self, number: int) -> None:
        """Removes a container that one of the sides has dropped."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            del self._numbers[id(entry.container)]

    def apply(self, changes: list[Any]) -> None:
        """Applies the other side's changes to this side's containers."""
        for number, content in changes:
            if (entry := self._entries.get(number)) is None:
                continue  # this side has dropped it meanwhile
            if number & 1 == self._parity:
                self._on_change(entry.container, entry.tag, items_of(entry.container, entry.tag))
            self._fill(entry.container, entry.tag, content)
            entry.synced_items = None
            self._unsynced.append(entry)

    def mark_synced(self) -> None:
        """Marks that both sides now have the same content."""
        for entry in self._unsynced:
            entry.synced_items = items_of(entry.container, entry.tag)
        self._unsynced.clear()

    def drop_unsynced(self) -> None:
        """Removes the containers of a message that could not be sent."""
        for number, entry in list(self._entries.items()):
            if entry.synced_items is None:
                self.remove(number)
        self._unsynced.clear()

    # ------------------------------------------------------------------ content

    def _content(self, value: Any, tag: str) -> list[Any]:
        encode = self._encode
        if tag == "bytearray":
            return [value.hex()]
        if tag == "ndarray":
            return values.encode_array(value, encode)
        if tag in _MAPPINGS:
            factory = [encode(value.default_factory)] if tag == "defaultdict" else []
            parts = (part for item in _KINDS[tag].items(value) for part in item)
            return [*factory, *values.encode_items(parts, encode)]
        length = [value.maxlen] if tag == "deque" else []
        return [*length, *values.encode_items(_KINDS[tag].__iter__(value), encode)]

    def _fill(self, value: Any, tag: str, content: list[Any]) -> None:
        if tag == "bytearray":
            value[:] = bytes.fromhex(content[0])
        elif tag == "ndarray":
            array = values.decode_array(content, self._decode)
            if array.shape != value.shape:
                if array.size != value.size:  # other arrays may be views of this one's memory
                    raise ValueError("an array cannot be resized")
                value.shape = array.shape
            value[...] = array
        else:
            parts = values.decode_items(content, self._decode)
            if tag == "defaultdict":
                value.default_factory = parts.pop(0)
            refill(value, tag, parts[1:] if tag == "deque" else parts)


def items_of(value: Any, tag: str) -> list[Any]:
    """Returns a container's items, in a form that shows changes and that `refill` accepts."""
    if tag == "object":
        return [_attributes(value)]
    if tag == "ndarray":
        return [value.tobytes() if not value.dtype.hasobject else value.tolist(), value.shape, value.copy()]
    if tag == "bytearray":
        return list(value)
    if tag in _MAPPINGS:
        return [part for item in _KINDS[tag].items(value) for part in item]
    return list(_KINDS[tag].__iter__(value))


def refill(value: Any, tag: str, items: list[Any]) -> None:
    """Replaces a container's items."""
    if tag == "object":
        _set_attributes(value, items[0])
    elif tag == "ndarray":
        value[...] = items[2]
    elif tag in ("list", "bytearray"):
        _KINDS[tag].__setitem__(value, slice(None), items)
    elif tag in _MAPPINGS:
        _KINDS[tag].clear(value)
        for key, item in zip(items[::2], items[1::2], strict=True):
            _KINDS[tag].__setitem__(value, key, item)
    else:
        kind = _KINDS[tag]
        kind.clear(value)
        (kind.update if tag == "set" else kind.extend)(value, items)


def plain_copy(value: Any) -> Any:
    """Returns a copy of plain containers; all other objects in them are kept, not copied."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind(map(plain_copy, value))
    if kind is dict:
        return {key: plain_copy(item) for key, item in value.items()}
    if kind.__module__ not in ("builtins", "collections", "numpy"):
        return value  # the program's, whose own `copy` would be called
    return value.copy() if kind.__name__ in ("ndarray", "deque", "Counter", "defaultdict", "bytearray") else value


def _attributes(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object or a class of the tests, without special ones of a class."""
    if isinstance(value, type):
        return {name: part for name, part in vars(value).items() if not name.startswith("__")}
    found = dict(getattr(value, "__dict__", {}))
    for name, slot in _slots(value):
        with contextlib.suppress(AttributeError):  # not set
            found[name] = slot.__get__(value)
    return found


def _set_attributes(value: Any, attributes: dict[str, Any]) -> None:
    """Sets the attributes of `_attributes`, without a call of the class's own methods or properties."""
    if isinstance(value, type):
        for name in _attributes(value).keys() - attributes.keys():
            type.__delattr__(value, name)
        for name, part in attributes.items():
            if vars(value).get(name) is not part:
                type.__setattr__(value, name, part)
        return
    rest = dict(attributes)
    for name, slot in _slots(value):
        if name in rest:
            slot.__set__(value, rest.pop(name))
        else:
            with contextlib.suppress(AttributeError):
                slot.__delete__(value)
    if hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(rest)


def _slots(value: Any) -> list[tuple[str, Any]]:
    parts = (item for kind in type(value).__mro__ for item in vars(kind).items())
    return [(name, part) for name, part in parts if isinstance(part, types.MemberDescriptorType)]


def _differ(tag: str, before: list[Any], now: list[Any]) -> bool:
    if tag == "ndarray":
        return before[:2] != now[:2]
    if len(before) != len(now):
        return True
    return any(map(operator.is_not, before, now))
