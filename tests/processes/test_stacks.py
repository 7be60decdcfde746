"""Tests of the stacks that a run which hangs leaves."""

import threading
from collections.abc import Iterator

import pytest

from megatron_sspo.config.user_code import call_user_code
from megatron_sspo.processes.watch.stacks import describe_position, format_stacks, positions


@pytest.fixture
def waiting() -> Iterator[int]:
    """The identifier of a thread that waits in code of the user's, which the package has called."""
    is_waiting, is_over = threading.Event(), threading.Event()

    def wait_for_the_end() -> None:
        is_waiting.set()
        is_over.wait()

    thread = threading.Thread(target=call_user_code, args=(wait_for_the_end, "the reward"), name="one that waits")
    thread.start()
    is_waiting.wait()
    yield thread.ident or 0
    is_over.set()
    thread.join()


def test_the_newest_function_of_the_package_is_named(waiting: int) -> None:
    assert describe_position(3, waiting).startswith("rank 3 waits in call_user_code (user_code.py, line ")


def test_a_thread_that_has_ended_is_named() -> None:
    assert describe_position(3, 0) == "rank 3 has ended its main thread"
    assert not list(positions(0))


def test_the_named_thread_is_first_and_each_has_its_functions(waiting: int) -> None:
    text = format_stacks(waiting)
    assert text.startswith("thread one that waits:\n") and "wait_for_the_end" in text
    assert "thread MainThread:\n" in text and "test_the_named_thread" in text


def test_positions_of_a_thread_that_waits_do_not_change(waiting: int) -> None:
    before = list(positions(waiting))
    assert before and before == list(positions(waiting))
