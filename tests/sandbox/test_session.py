"""Tests of sessions: cells that run one after another in one sandbox."""

import ctypes
import threading
import time

import psutil
import pytest

from megatron_sspo.sandbox import session as session_module
from megatron_sspo.sandbox.sandbox import Sandbox
from tests.sandbox.conftest import LIMITS, assert_nothing_runs, processes_of

PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl


@pytest.fixture
def session(sandbox: Sandbox):
    made = sandbox.session()
    yield made
    made.close()
    assert_nothing_runs(sandbox)


def test_state_persists_and_a_cell_shows_what_a_notebook_would(session) -> None:
    assert session.execute("x = 20\ndef f(y):\n    return x + y") == ""
    assert session.execute("f(22)") == "42\n"
    assert session.execute("print('printed')\nx") == "printed\n20\n"
    assert session.execute("_ + 1; None") == ""
    assert session.execute("import sys\nprint('a', file=sys.stderr)\nprint('b', flush=True)\n'c'") == "a\nb\n'c'\n"
    assert session.execute("open('file', 'w').write('kept')") == "4\n"
    assert session.execute("open('file').read()") == "'kept'\n"
    assert session.execute("class A:\n    pass\nA.__module__") == "'__main__'\n"
    assert session.execute("") == ""
    assert session.execute("input()").endswith("EOFError: EOF when reading a line\n")


def test_an_observation_is_text_that_every_tokenizer_takes(session) -> None:
    """Half of a surrogate pair would end the run: an environment's observation must not have one."""
    assert session.execute("raise ValueError('\\ud800')").endswith("\nValueError: \\ud800\n")
    session.execute("class A:\n  def __repr__(self): return '\\udfff'")
    assert session.execute("A()") == "\\udfff\n"


def test_a_syntax_error_shows_the_cell_alone(session) -> None:
    assert session.execute("def f(: pass") == (
        '  File "<cell 1>", line 1\n    def f(: pass\n          ^\nSyntaxError: invalid syntax\n'
    )


@pytest.mark.parametrize("cell", ["import sys; sys.stdout.close()", "import sys; sys.stdout = None"])
def test_a_cell_that_loses_its_output_does_not_hide_the_values_of_others(session, cell: str) -> None:
    assert session.execute(cell) == ""
    assert session.execute("6 * 7") == "42\n"


def test_the_time_to_start_is_not_the_first_cells(session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first cell that cannot be interrupted would keep its caller for an hour."""
    monkeypatch.setattr(session_module, "START_SECONDS", 3600.0)
    monkeypatch.setattr(session_module, "_GRACE_SECONDS", 0.1)
    code = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"
    assert "could not be interrupted" in session.execute(code, 0.1)


def test_a_session_that_closes_while_a_cell_is_sent_is_no_error(session) -> None:
    submit = session._thread.submit
    closing = threading.Thread(target=session.close)

    def close_before(work, *arguments):
        if not closing.ident:
            closing.start()
            closing.join(2.0)  # long enough for a close that does not wait for the cell
        return submit(work, *arguments)

    session._thread.submit = close_before
    assert isinstance(session.execute("1"), str)
    closing.join()
    assert session.execute("1") == "[the session is over]"


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_session_that_closes_at_its_start_leaves_no_zombie(sandbox: Sandbox, seconds: float) -> None:
    """Lets this process adopt what its children leave behind, as the first process of a container does."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    try:
        before = set(psutil.Process().children())
        for _ in range(3):
            made = sandbox.session()
            time.sleep(seconds)
            made.close()
        assert set(psutil.Process().children()) - before == set()
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def test_a_traceback_has_the_frames_of_the_cells_alone(session) -> None:
    session.execute("def f():\n    return 1 / 0")
    lines = session.execute("x = 1\nf()").splitlines()
    assert [line for line in lines if "~" not in line] == [  # newer Pythons underline more
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 2, in <module>',
        "    f()",
        '  File "<cell 1>", line 2, in f',
        "    return 1 / 0",
        "ZeroDivisionError: division by zero",
    ]
    assert session.execute("1 +").splitlines()[-1] == "SyntaxError: invalid syntax"
    assert "sandbox" not in session.execute("1 +")
    assert session.execute("x") == "1\n", "an error does not end the session"


def test_a_cell_over_its_deadline_is_interrupted_and_the_state_survives(session) -> None:
    session.execute("x = 1")
    for code in (
        "while True: pass",
        "import time; time.sleep(100)",
        "try:\n  while True: pass\nexcept Exception: pass",
    ):
        assert session.execute(code, seconds=0.3) == "TimeoutError: the cell was interrupted after 0.3 seconds\n"
    assert session.execute("x") == "1\n"
    assert session.is_alive


def writes(text: str) -> str:
    """Returns a cell that writes a line to every file descriptor that it finds."""
    return (
        f"import os\nfor n in range(3, 4096):\n  try: os.write(n, {text.encode()!r} + b'\\n')\n  except OSError: pass"
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os._exit(3)", "ended the interpreter with exit code 3"),
        ("raise SystemExit(4)", "ended the interpreter with exit code 4"),
        ("import os; os.kill(os.getpid(), 11)", "ended the interpreter with exit code 139"),
        ("import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass", "could not be interrupted"),
        ("while True: print('x' * 1000)", f"printed more than {LIMITS.output_bytes} bytes"),
        (writes("rubbish"), "wrote an invalid reply"),
        (writes('{"number": 7, "text": ""}'), "wrote an invalid reply"),
        (writes("[" * 50_000), "wrote an invalid reply"),
    ],
)
def test_a_cell_that_ends_the_interpreter_ends_the_session(session, code: str, said: str) -> None:
    session.execute("x = 1")
    observation = session.execute(code, seconds=0.5)
    assert "[the session is over: " in observation and said in observation, observation[-300:]
    assert not session.is_alive
    assert session.execute("x") == "[the session is over]"


def test_what_was_printed_before_the_end_is_shown(session) -> None:
    assert session.execute("import os; print('last words', flush=True); os._exit(3)").startswith("last words\n")


def test_a_long_observation_keeps_its_beginning_and_its_end(session) -> None:
    observation = session.execute("print('begin' + 'x' * 50000 + 'end')")
    assert observation.startswith("begin") and observation.endswith("end\n") and "characters left out]" in observation
    assert len(observation) < 21_000


def test_a_large_cell_arrives(session) -> None:
    assert session.execute(f"x = {'y' * 500_000!r}\nlen(x)") == "500000\n"


def test_sessions_do_not_share_anything(sandbox: Sandbox) -> None:
    first, second = sandbox.session(), sandbox.session()
    first.execute("x = 1\nopen('file', 'w').close()")
    assert "NameError" in second.execute("x")
    assert second.execute("import os; os.listdir('.')") == "[]\n"
    first.close()
    assert second.execute("1") == "1\n"
    second.close()
    second.close()
    assert second.execute("1") == "[the session is over]"
    assert_nothing_runs(sandbox)


def test_a_session_outlives_the_thread_that_opened_it(sandbox: Sandbox) -> None:
    opened = []
    thread = threading.Thread(target=lambda: opened.append(sandbox.session()))
    thread.start()
    thread.join(60)
    assert opened[0].execute("6 * 7") == "42\n"
    opened[0].execute(
        "import os\nfor _ in range(3):\n  if os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(100)"
    )
    assert processes_of(sandbox)
    opened[0].close()
    assert_nothing_runs(sandbox)
