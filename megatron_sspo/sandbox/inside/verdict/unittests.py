"""Reports what unittest's runner finds: it catches every exception, and a test may not look at its result."""

from __future__ import annotations

from megatron_sspo.sandbox.inside.verdict.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    import unittest
    from typing import Any


def watch(record: Record) -> None:
    """Makes all results of unittest report to a record."""
    import unittest  # slow to import, and few tests use it

    kind = unittest.TestResult
    start, expected = kind.startTest, kind.addExpectedFailure
    error, failure, part, unexpected = kind.addError, kind.addFailure, kind.addSubTest, kind.addUnexpectedSuccess

    def start_test(self: unittest.TestResult, test: Any) -> None:
        record.start_unittest()
        start(self, test)

    def add_expected_failure(self: unittest.TestResult, test: Any, err: Any) -> None:
        record.drop_failures_of_unittest()
        expected(self, test, err)

    def add_error(self: unittest.TestResult, test: Any, err: Any) -> None:
        record.fail_unittest(f"{test}: {err[0].__name__}: {err[1]}")
        error(self, test, err)

    def add_failure(self: unittest.TestResult, test: Any, err: Any) -> None:
        record.fail_unittest(f"{test}: {err[0].__name__}: {err[1]}")
        failure(self, test, err)

    def add_part(self: unittest.TestResult, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            record.fail_unittest(f"{subtest}: {err[0].__name__}: {err[1]}")
        part(self, test, subtest, err)

    def add_unexpected_success(self: unittest.TestResult, test: Any) -> None:
        record.fail_unittest(f"{test}: unexpected success")
        unexpected(self, test)

    kind.startTest, kind.addExpectedFailure, kind.addError = start_test, add_expected_failure, add_error
    kind.addFailure, kind.addSubTest, kind.addUnexpectedSuccess = add_failure, add_part, add_unexpected_success
