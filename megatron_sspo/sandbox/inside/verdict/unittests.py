"""Reports what unittest's runner finds: it catches every exception, and a test may not look at its result."""

from __future__ import annotations

from collections.abc import Callable

from megatron_sspo.sandbox.inside.verdict.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any


def watch(record: Record) -> None:
    """Makes all results of unittest report to a record, before they do what they did."""
    import unittest  # slow to import, and few tests use it

    def first(method: str, report: Callable[..., None]) -> None:
        """Lets a method of a result call `report` with its arguments first."""
        original = getattr(unittest.TestResult, method)

        def reporting(self: unittest.TestResult, *arguments: Any, **keywords: Any) -> None:
            report(*arguments, **keywords)
            original(self, *arguments, **keywords)

        setattr(unittest.TestResult, method, reporting)

    def fail(test: Any, err: Any) -> None:
        record.failures.append(f"{test}: {err[0].__name__}: {err[1]}")

    first("startTest", lambda test: record.start_unittest())
    first("addExpectedFailure", lambda test, err: record.drop_failures_of_unittest())
    first("addError", fail)
    first("addFailure", fail)
    first("addSubTest", lambda test, subtest, err: fail(subtest, err) if err is not None else None)
    first("addUnexpectedSuccess", lambda test: record.failures.append(f"{test}: unexpected success"))
