"""Tests of sessions: cells that run one after another in one sandbox."""

import ctypes
import threading
import time

import psutil
import pytest

from packages.sandbox.tests.conftest import LIMITS, assert_nothing_runs, processes_of
from sspo_sandbox import Sandbox

PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl
ENDLESS = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"


@pytest.fixture
def session(sandbox: Sandbox):
    made = sandbox.session()
    yield made
    made.close()
    assert_nothing_runs(sandbox)


def test_state_persists_and_a_cell_shows_what_a_notebook_would(session) -> None:
    assert session.execute("input()").endswith("EOFError: EOF when reading a line\n")
    assert session.execute("raise ValueError('\\ud800')").endswith("\nValueError: \\ud800\n")
    for cell, shown in (
        ("x = 20\ndef f(y):\n    return x + y", ""),
        ("f(22)", "42\n"),
        ("print('printed')\nx", "printed\n20\n"),
        ("_ + 1; None", ""),
        ("import sys\nprint('a', file=sys.stderr)\nprint('b', flush=True)\n'c'", "a\nb\n'c'\n"),
        ("open('file', 'w').write('kept')", "4\n"),
        ("open('file').read()", "'kept'\n"),
        ("class A:\n  def __repr__(self): return '\\udfff'\nA.__module__", "'__main__'\n"),
        ("A()", "\\udfff\n"),  # half of a surrogate pair, which no tokenizer takes
        ("", ""),
        (f"y = {'y' * 500_000!r}\nlen(y)", "500000\n"),
        ("sys.stdout.close()", ""),
        ("6 * 7", "42\n"),
        ("sys.stdout = None", ""),
        ("6 * 7", "42\n"),
    ):
        assert session.execute(cell) == shown


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
    assert session.execute("def f(: pass") == (
        '  File "<cell 3>", line 1\n    def f(: pass\n          ^\nSyntaxError: invalid syntax\n'
    )
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
        (ENDLESS, "could not be interrupted"),
        ("while True: print('x' * 1000)", f"printed more than {LIMITS.output_bytes} bytes"),
        (writes("rubbish"), "wrote an invalid reply"),
        (writes('{"number": 7, "text": ""}'), "wrote an invalid reply"),
        (writes("[" * 50_000), "wrote an invalid reply"),
    ],
)
def test_a_cell_that_ends_the_interpreter_ends_the_session(session, code: str, said: str) -> None:
    session.execute("x = 1")
    observation = session.execute(f"print('last words', flush=True)\n{code}", seconds=0.5)
    assert observation.startswith("last words\n"), "what was printed before the end is shown"
    assert "[the session is over: " in observation and said in observation, observation[-300:]
    assert not session.is_alive
    assert session.execute("x") == "[the session is over]"


def test_sessions_do_not_share_anything_and_outlive_the_thread_that_opened_them(sandbox: Sandbox) -> None:
    opened = []
    thread = threading.Thread(target=lambda: opened.append(sandbox.session()))
    thread.start()
    thread.join(60)
    first, second = opened[0], sandbox.session()
    first.execute("x = 1\nopen('file', 'w').close()")
    assert "NameError" in second.execute("x")
    assert second.execute("import os; os.listdir('.')") == "[]\n"
    first.execute(
        "import os\nfor _ in range(3):\n  if os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(100)"
    )
    assert processes_of(sandbox)
    first.close()
    assert second.execute("1") == "1\n"
    second.close()
    second.close()
    assert second.execute("1") == "[the session is over]"
    assert_nothing_runs(sandbox)


def test_a_session_that_closes_while_cells_are_sent_is_no_error(sandbox: Sandbox) -> None:
    session = sandbox.session()
    session.execute("")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(session.execute("1"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    session.close()
    for thread in threads:
        thread.join(60)
    assert len(found) == 20 and all(text == "1\n" or "the session is over" in text for text in found), found
    assert_nothing_runs(sandbox)


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
