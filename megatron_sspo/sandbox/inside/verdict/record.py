"""The record of the checks: the rewritten tests (checks.py) report to it while they run."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sized

from megatron_sspo.sandbox.inside.proxies import mirror
from megatron_sspo.sandbox.inside.proxies.client import JudgeSide
from megatron_sspo.sandbox.inside.proxies.errors import ProgramStopped
from megatron_sspo.sandbox.inside.proxies.mirror import Proxy
from megatron_sspo.sandbox.inside.verdict.arguments import ChangedArguments
from megatron_sspo.sandbox.inside.verdict.flow import Flow
from megatron_sspo.sandbox.inside.verdict.sites import Site

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

    Thunk = Callable[[], Any]


_PROXIES = mirror.__name__.rpartition(".")[0]  # the package through which the program calls the tests' functions


class Record:
    """Records every check, and failures that a test could hide by catching an exception.

    Args:
        sites: the checks and blocks of all tests.
        describe: a function that returns the sites with the results that each looks at.
    """

    def __init__(
        self, judge_side: JudgeSide, flow: Flow, sites: list[Site], describe: Callable[[], list[Site]]
    ) -> None:
        self._judge_side = judge_side
        self._sites = sites
        self._flow = flow
        self._arguments = ChangedArguments(judge_side, flow)
        self._counts: list[list[int]] = []  # numbers of items, for each check that is being evaluated
        self._describe = describe
        self._details: list[Site] | None = None
        self._is_comparing = False
        self.failures: list[str] = []
        self._failed_checks: list[str] = []
        self._escaped: list[BaseException] = []  # of the program, out of functions with checks
        self._before_unittest = 0, 0  # the lengths of the two lists when the last unittest method began

    def verdict(self) -> str:
        """Returns why the tests have failed although none of them raised an exception; "" if they have passed."""
        for failure in (*self.failures, *self._failed_checks, *self._arguments.failures()):
            return failure
        for error in self._escaped:
            return f"{type(error).__name__} of the program ended a function before its checks, and nothing caught it"
        for site in self._sites:
            if self._is_vacuous(site) and not self._is_excused(site):
                return f"test {site.text}, line {site.line}: the {site.kind} has checked nothing"
        return self._unchecked_test()

    def _unchecked_test(self) -> str:
        texts: dict[int, list[Site]] = {}
        checks = [site for site in self._sites if site.kind == "check" and site.is_real]
        if checks and not any(site.num_checked for site in checks) and not any(map(self._is_excused, checks)):
            return "none of the checks has run"
        for site in checks:
            if not site.owner or site.owner in self._flow.loaded:
                texts.setdefault(site.text, []).append(site)
        for text, sites in texts.items():
            if not any(site.num_checked for site in sites) and not any(map(self._is_excused, sites)):
                return f"test {text}: none of its checks has run"
        return ""

    def _is_vacuous(self, site: Site) -> bool:
        if site.kind == "check":
            return site.num_empty > 0 and site.num_full == 0
        return site.num_reached > 0 and site.num_checked == 0

    def _is_excused(self, site: Site) -> bool:
        if self._details is None:
            self._details = self._describe()
        details = self._details
        keys = details[site.number].keys
        others = (other.number for other in self._sites if other is not site and other.num_checked)
        return details[site.number].is_excused or any(details[number].covers & keys for number in others)

    # ------------------------------------------------------------------ checks

    def check(self, number: int, thunk: Thunk) -> Any:
        """Evaluates the condition of an assert statement."""
        site = self._sites[number]
        value, log = self._evaluate(site, thunk)
        if self._record_result(site, value):
            self._arguments.recheck_condition(thunk, log)
        return value

    def check_equal(
        self,
        number: int,
        left: Thunk,
        right: Thunk,
        left_depends: bool,
        right_depends: bool,
        is_equal: Callable[[Any, Any], Any] = operator.eq,
    ) -> Any:
        """Evaluates an assert statement that compares two expressions."""
        site = self._sites[number]
        sides: list[Any] = []
        length = 0

        def compare() -> Any:
            nonlocal length
            sides.append(left())
            length = len(self._judge_side.log or ())
            sides.append(right())
            return is_equal(*sides)

        was_comparing, self._is_comparing = self._is_comparing, True
        try:
            value, log = self._evaluate(site, compare)
        finally:
            self._is_comparing = was_comparing
        if self._record_result(site, value):
            logs = log[:length], log[length:]
            self._arguments.recheck_sides((left, right), sides, logs, (left_depends, right_depends))
        return value

    def check_equality_call(
        self, number: int, left: Thunk, right: Thunk, left_depends: bool, right_depends: bool, call: Callable[..., Any]
    ) -> None:
        """Makes a call that compares two expressions, such as `self.assertEqual(f(xs), sorted(xs))`."""

        def is_equal(first: Any, second: Any) -> bool:
            call(first, second)
            return True

        try:
            self.check_equal(number, left, right, left_depends, right_depends, is_equal)
        except AssertionError as error:
            self._fail(self._sites[number], str(error))
            raise

    def check_value(self, number: int, value: Any) -> Any:
        """Records the value of an assert statement's condition that cannot be put into a lambda."""
        self._record_result(self._sites[number], value)
        return value

    def check_call(self, number: int, thunk: Thunk) -> Any:
        """Makes a call that is a check, such as `self.assertEqual(...)`."""
        site = self._sites[number]
        try:
            value, _ = self._evaluate(site, thunk)
        except AssertionError as error:
            self._fail(site, str(error))
            raise
        self.drop_escaped()  # such as in `assertRaises(ValueError, function)`
        self._complete(site)
        return value

    def block_passed(self, number: int) -> None:
        """Records that a check has ended without an error: `with pytest.raises(...)`, or a call that awaits."""
        self._complete(self._sites[number])

    def _evaluate(self, site: Site, thunk: Thunk) -> tuple[Any, list[Any]]:
        site.num_reached += 1
        self._counts.append([])
        log: list[Any] = []
        outer, self._judge_side.log = self._judge_side.log, log
        try:
            value = thunk()
        finally:
            self._judge_side.log = outer
            counts = self._counts.pop()
        if outer is not None:
            outer += log
        if counts:
            site.num_full += any(counts)
            site.num_empty += not any(counts)
        site.was_empty = bool(counts) and not any(counts)
        return value, log

    def _record_result(self, site: Site, value: Any) -> bool:
        if not value:
            self._fail(site, "")
            return False
        if not site.was_empty:
            self._complete(site)
        return True

    def _complete(self, site: Site) -> None:
        if site.is_real:
            site.num_checked += 1
            for number in site.blocks:
                self._sites[number].num_checked += 1

    def _fail(self, site: Site, text: str) -> None:
        """Records a failed check, because the program or the test might catch its exception.

        In a function that the program calls, only a check of what the program passed or returned counts. There, any
        other check is a way for the test to raise an exception; so is a check in a call whose own result is checked.
        """
        is_about_program = site.uses_parameters or site.uses_results
        if self._judge_side.callback_depth and (self._counts or not is_about_program):
            return
        reason = f": {text}" if text else ""
        self._failed_checks.append(f"test {site.text}, line {site.line}: the check failed{reason}")

    def drop_last_failure(self) -> None:
        """Drops the last failed check, since the test catches AssertionError and continues."""
        if self._failed_checks:
            self._failed_checks.pop()

    def record_end(self) -> None:
        """Records an exception of the program that leaves a function with checks: a thread or a task may drop it."""
        error = sys.exc_info()[1]
        if error is not None and (isinstance(error, ProgramStopped) or mirror.FIELD in vars(error)):
            self._escaped.append(error)

    def drop_escaped(self) -> None:
        """Drops what has left functions, since a handler or a context manager of the test has caught it."""
        self._escaped.clear()

    def check_caught(self) -> None:
        """Records a failure if a class of the program has caught an exception that the test itself has raised.

        A program may give an exception of Python another name, such as `Insufficient = AssertionError`. It would then
        catch the `fail()` of a test that expects an exception. Exceptions of a function that the program calls count
        as the program's.
        """
        error = sys.exc_info()[1]
        if error is None or mirror.FIELD in vars(error) or isinstance(type(error), mirror.Mirror):
            return
        place = error.__traceback__
        while place is not None:
            if place.tb_frame.f_globals.get("__name__", "").startswith(_PROXIES):
                return
            place = place.tb_next
        self.failures.append(f"a class of the program has caught the test's own {type(error).__name__}: {error}")

    def record_escape(self) -> None:
        """Records an exception that leaves a unittest method, since the unittest runner would catch it."""
        error = sys.exc_info()[1]
        if not isinstance(error, AssertionError):
            self.failures.append(f"{type(error).__name__}: {error}")

    def start_unittest(self) -> None:
        """Records that a unittest method begins."""
        self._before_unittest = len(self.failures), len(self._failed_checks)

    def drop_failures_of_unittest(self) -> None:
        """Drops what a unittest method has recorded, since the test expects it to fail."""
        num_failures, num_failed_checks = self._before_unittest
        del self.failures[num_failures:], self._failed_checks[num_failed_checks:]
        self._escaped.clear()

    # ------------------------------------------------------------------ blocks

    def reach_block(self, number: int) -> None:
        """Records that a block begins."""
        self._sites[number].num_reached += 1

    def catch_stops(self, kinds: Any) -> Any:
        """Adds `ProgramStopped` to the exceptions of a handler that catches StopIteration."""
        return (*(kinds if isinstance(kinds, tuple) else (kinds,)), ProgramStopped)

    def lambda_body(self, thunk: Thunk) -> Any:
        """Evaluates the body of a lambda; replaces a StopIteration, which would end the `map` that calls the lambda."""
        try:
            return thunk()
        except StopIteration as error:
            raise RuntimeError("a function of the test raised StopIteration") from error

    # ------------------------------------------------------------------ objects of the program

    def function(self, value: Any) -> Any:
        """Returns what a test calls as a function; what a class of the program returns then is not direct."""
        if not isinstance(value, mirror.Mirror):
            return value
        return lambda *arguments, **keywords: mirror.returned(value(*arguments, **keywords))

    def same(self, value: Any) -> Any:
        """Returns a value that the test compares by identity: one object for both twins of an object."""
        return mirror.returned(value) if isinstance(value, Proxy) else value

    # ------------------------------------------------------------------ iterables

    def _count(self, number: int) -> None:
        if self._counts:
            self._counts[-1].append(number)

    def count_items(self, value: Any) -> Any:
        """Counts the items that an iterable yields."""
        if isinstance(value, Sized) and not isinstance(value, Proxy):
            self._count(_size(value))
            return value
        return self._counted(value) if isinstance(value, Iterable) or hasattr(type(value), "__getitem__") else value

    def _counted(self, value: Any) -> Iterator[Any]:
        counts = self._counts[-1] if self._counts else []
        place = len(counts)
        counts.append(0)
        for item in value:
            counts[place] += 1
            yield item

    def count_in_helper(self, value: Any) -> Any:
        """Counts the items that a helper function of a test looks at, unless the function's result is compared."""
        return value if self._is_comparing else self.count_items(value)

    def record_loop(self, value: Any) -> Any:
        """Records a loop over an argument."""
        self._arguments.record_loop(value)
        return value

    def count_size(self, value: Any) -> Any:
        """Counts the items that a value has."""
        self._count(_size(value))
        return value

    def check_emptiness(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Records a failure if only one of two arrays is empty: broadcasting would then compare nothing."""
        if (_size(first) == 0) != (_size(second) == 0):
            self.failures.append("an empty array is compared with one that is not empty")
        return first, second

    def check_indices(self, iterable: Any, lists: Callable[[], tuple[Any, ...]]) -> Iterator[Any]:
        """Iterates over the program's indices, and checks that they cover the lists that the test indexes."""
        number = 0
        for item in iterable:
            number += 1
            yield item
        if any(
            isinstance(part, Sized) and not isinstance(part, (Proxy, dict)) and len(part) > number for part in lists()
        ):
            self.failures.append("a loop over the program's result ends before the values that it is compared with")

    def zip(self, depends: tuple[bool, ...], *iterables: Any) -> Iterator[tuple[Any, ...]]:
        """Iterates as `zip` does, and checks that the program's result is as long as the test's values."""
        iterators = [iter(part) for part in iterables]
        while True:
            items: list[Any] = []
            ended: list[int] = []
            for place, part in enumerate(iterators):
                try:
                    items.append(next(part))
                except StopIteration:
                    ended.append(place)
                    break
            if ended:
                self._compare_ends(ended[0], depends, iterables, iterators, items)
                return
            yield tuple(items)

    def map(self, depends: tuple[bool, ...], function: Callable[..., Any], *iterables: Any) -> Iterator[Any]:
        """Iterates as `map` does, and checks the lengths as `zip` does."""
        for items in self.zip(depends, *iterables):
            yield function(*items)

    def _compare_ends(
        self, ended: int, depends: tuple[bool, ...], iterables: Any, iterators: list[Any], items: list[Any]
    ) -> None:
        """Records a failure if the program's result ends before every value of the test, or after the first of them."""
        if isinstance(iterables[ended], range):
            return

        def has_more(place: int) -> bool:
            try:
                return place < len(items) or bool([next(iterators[place])])
            except StopIteration:
                return False

        others = [
            place
            for place, part in enumerate(iterables)
            if place != ended
            and depends[place] != depends[ended]
            and not isinstance(part, range)
            # a generator of the program, or an endless iterator of the test, may have more items
            and (isinstance(part, Sized) if depends[place] else _is_finite(part))
        ]
        is_longer = [has_more(place) for place in others]
        if any(is_longer) and (all(is_longer) or not depends[ended]):
            self.failures.append("the program's result differs in length from the value that it is compared with")


def _is_finite(value: Any) -> bool:
    kind = type(value).__name__
    if kind == "generator":
        return getattr(value, "__name__", "") == "<genexpr>"
    return kind not in ("count", "cycle", "repeat") and not isinstance(value, Proxy)


def _size(value: Any) -> int:
    size = getattr(value, "size", None) if type(value).__module__ == "numpy" else None
    if isinstance(size, int):
        return size
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return len(value) if isinstance(value, Sized) and not isinstance(value, Proxy) else 1
