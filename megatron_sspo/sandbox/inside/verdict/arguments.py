"""Detects expected values that a test computes from an argument which the program has changed.

`assert f(xs) == sorted(xs)` proves nothing if `f` empties the list. So an assert that passes is evaluated again with
the arguments as they were before the program changed them. It has to hold again, unless another check of the test
examines the changed argument, as in tests of functions that work in place.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence

from megatron_sspo.sandbox.inside.proxies import mirror, shared
from megatron_sspo.sandbox.inside.proxies.client import JudgeSide, OriginalItems, ReplayMismatch, Reply
from megatron_sspo.sandbox.inside.verdict.flow import Flow

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

    Thunk = Callable[[], Any]

_RAISED = object()  # the value of an expression that cannot be evaluated again
# Classes of the standard library with attributes that a test sets: `maps` of a ChainMap, `data` of a UserList.
_NAMESPACES = ("SimpleNamespace", "Namespace", "ChainMap", "UserDict", "UserList", "partial")
_MAX_OBJECTS = 10_000  # the most objects that are examined for each check


class ChangedArguments:
    """The arguments that the program has changed, and the checks that depend on them."""

    def __init__(self, judge_side: JudgeSide, flow: Flow) -> None:
        self._judge_side = judge_side
        self._flow = flow
        self._inspected: set[int] = set()
        self._doubtful: list[set[int]] = []

    def failures(self) -> list[str]:
        """Returns a message if a check held only because an argument was changed, else an empty list."""
        if any(not group & self._inspected for group in self._doubtful):
            return ["an expectation was computed from an argument that the program had changed"]
        return []

    def recheck_condition(self, thunk: types.FunctionType, log: list[Reply]) -> None:
        """Evaluates again a condition that was true."""
        changed, others = self._changed_in(thunk)
        returned = {id(part) for reply in log for part in _parts(reply.value)}
        if any(tag == "object" and number in returned for number, (_, tag, _) in changed.items()):
            self._inspected |= changed.keys()  # an object that the program changes and returns, such as a tree
            return

        def holds(values: list[Any]) -> bool:
            return values[0] is not _RAISED and bool(values[0])

        if not changed or self._reevaluate([thunk], [log], changed, holds, uses_copies=True):
            return
        if _compares_identity(thunk.__code__) and self._reevaluate([thunk], [log], changed, holds):
            return
        self._add_group(set(changed), is_independent=not others)

    def recheck_sides(
        self,
        thunks: tuple[Thunk, Thunk],
        sides: list[Any],
        logs: tuple[list[Reply], list[Reply]],
        depends: tuple[bool, bool],
    ) -> None:
        """Evaluates again two sides that were equal."""
        if not self._judge_side.changed:
            return
        found = [self._changed_in(thunk) for thunk in thunks]
        changed = found[0][0] | found[1][0]
        if not changed:
            return
        now = [shared.plain_copy(side) for side in sides]

        def compare(values: list[Any]) -> bool:
            differs = [not _same(value, live) for value, live in zip(values, now, strict=True)]
            if not any(differs):
                return True
            if all(differs):
                return _same(now[0], values[1]) or _same(values[0], now[1])
            place = differs.index(True)
            if _same(values[place], now[1 - place]):
                return True
            is_computed_alike = bool(found[1 - place][0]) and not found[1 - place][1]  # such as `xs == sorted(xs)`
            self._add_group(set(changed), is_independent=is_computed_alike or not depends[1 - place])
            return True

        if not self._reevaluate(thunks, logs, changed, compare):
            self._add_group(set(changed), is_independent=False)

    def record_loop(self, value: Any) -> None:
        """Records a loop over an argument from which the program has removed items."""
        _, tag, items = self._judge_side.changed.get(id(value), (None, "", []))
        if tag in ("list", "set") and len(value) < len(items):
            self._doubtful.append({id(value)})

    def _add_group(self, group: set[int], is_independent: bool) -> None:
        if is_independent:
            self._inspected |= group
        else:
            self._doubtful.append(group)

    def _reevaluate(
        self,
        thunks: Sequence[Thunk],
        logs: Sequence[list[Reply]],
        changed: dict[int, Any],
        accepts: Callable[[list[Any]], bool],
        uses_copies: bool = False,
    ) -> bool:
        """Evaluates expressions with the former arguments and the logged answers; returns what `accepts` returns.

        Args:
            uses_copies: whether an argument that the program has returned has its new items where it is an answer.
        """
        with OriginalItems(list(changed.values())):
            values: list[Any] = []
            for thunk, log in zip(thunks, logs, strict=True):
                try:
                    with self._judge_side.replay(log, uses_copies):
                        values.append(shared.plain_copy(thunk()))
                except ReplayMismatch:
                    return True
                except Exception:
                    values.append(_RAISED)
            return accepts(values)

    def _changed_in(self, thunk: Thunk) -> tuple[dict[int, Any], bool]:
        """Returns the changed arguments that an expression reads, and whether it reads other results too."""
        if not self._judge_side.changed or not isinstance(thunk, types.FunctionType):
            return {}, False
        found: dict[int, Any] = {}
        others = False
        for name, value in _read_by(thunk):
            changed = {
                id(part): self._judge_side.changed[id(part)]
                for part in _parts(value)
                if id(part) in self._judge_side.changed
            }
            found |= changed
            others = others or (not changed and name in self._flow.functions | self._flow.results)
        return found, others


def _read_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the variables that a function reads, and their values."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        for name in code.co_names:
            yield name, dict.get(function.__globals__, name)
        waiting.extend(part for part in code.co_consts if isinstance(part, types.CodeType))


def _compares_identity(code: types.CodeType) -> bool:
    """Returns whether an expression contains `is`, which does not hold for a copy of an answer."""
    import dis  # slow to import, and few tests need it

    return any(instruction.opname == "IS_OP" for instruction in dis.get_instructions(code)) or any(
        isinstance(part, types.CodeType) and _compares_identity(part) for part in code.co_consts
    )


def _parts(value: Any) -> Iterator[Any]:
    """Yields a value and the objects that it contains."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _MAX_OBJECTS:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        kind = type(part)
        if isinstance(part, (list, tuple)) or kind.__name__ == "deque":
            waiting.extend(item for item in part if not isinstance(item, (int, str, float)))
        elif isinstance(part, dict):
            waiting.extend(item for item in part.values() if not isinstance(item, (int, str, float)))
        elif kind.__module__ == "tests":
            waiting.append(kind)
            waiting.extend(shared.items_of(part, "object")[0].values())
        elif issubclass(kind, type) and kind is not mirror.Mirror and part.__module__ == "tests":
            waiting.extend(part.__bases__)
            waiting.extend(shared.items_of(part, "object")[0].values())
        elif kind.__name__ in _NAMESPACES:
            waiting.extend(vars(part).values())


def _same(first: Any, second: Any) -> bool:
    try:
        return bool(first == second) or first is second
    except Exception:
        return first is second
