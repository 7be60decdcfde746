"""Tests of what a program finds in a sandbox, how its end is reported, and what is left afterwards."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import sspo_sandbox
from packages.sandbox.tests.conftest import LIMITS, assert_nothing_runs, processes_of, wait_until
from sspo_sandbox import Case, Limits, Sandbox, SandboxBroken, SandboxError, cgroup
from sspo_sandbox.cgroup import Cgroups
from sspo_sandbox.image import Image
from sspo_sandbox.seccomp import seccomp_filter


def test_a_program_has_its_input_and_a_folder(patient: Sandbox) -> None:
    program = (
        "import os, sys\n"
        "open('new', 'w').write(input())\n"
        "print(open('new').read(), os.getcwd(), __name__, sys.argv)\n"
        "print('é', file=sys.stderr)\n"
    )
    result = patient.run(program, "line\nrest")
    assert (result.stdout, result.stderr) == ("line /tmp __main__ ['program.py']\n", "é\n")
    assert (result.end_reason, result.exit_code) == ("ok", 0)
    assert patient.run("import os; print(os.listdir('.'))").stdout == "[]\n", "nothing of the one before"


def test_output_is_cut_off_and_what_came_before_is_kept(sandbox: Sandbox) -> None:
    result = sandbox.run("import sys\nprint('first')\nwhile True: print('x' * 1000)")
    assert result.end_reason == "output"
    assert result.stdout.startswith("first\n") and len(result.stdout) == LIMITS.output_bytes
    assert sandbox.run("import time; time.sleep(1000)", seconds=0.2).seconds < LIMITS.wall_seconds


@pytest.mark.parametrize(
    ("program", "end_reason", "exit_code"),
    [
        ("pass", "ok", 0),
        ("import sys; sys.exit(3)", "error", 3),
        ("1/0", "error", 1),
        ("(", "error", 1),
        ("import os; os.abort()", "crash", 134),
        ("import os; os.kill(os.getpid(), 9)", "crash", 137),
        ("while True: pass", "time", None),
        ("print('x' * 10**6)", "output", None),
        ("x = [bytearray(1 << 20) for _ in range(10**6)]", "memory", 1),
    ],
)
def test_how_a_program_ended(sandbox: Sandbox, program: str, end_reason: str, exit_code: int | None) -> None:
    result = sandbox.run(program)
    assert (result.end_reason, result.exit_code) == (end_reason, exit_code), result


def test_the_limit_on_cpu_seconds_is_a_time_out() -> None:
    ignoring = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    with contextlib.closing(Sandbox(Limits(wall_seconds=60.0, cpu_seconds=1))) as slow:
        assert slow.run("while True: pass").end_reason == slow.run(ignoring).end_reason == "time"
        assert not slow.check("def f():\n  while True: pass", ["assert f()"]).passed


def test_a_traceback_shows_only_the_program(sandbox: Sandbox) -> None:
    stderr = sandbox.run("def f():\n    return 1 / 0\nf()").stderr
    assert stderr.splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "program.py", line 3, in <module>',
        "    f()",
    ]
    assert "sandbox" not in stderr
    assert sandbox.run("x = = 1").stderr.startswith('  File "program.py", line 1')


def test_the_standard_library_is_there(patient: Sandbox) -> None:
    names = (
        "asyncio bz2 collections csv ctypes datetime decimal fractions hashlib heapq itertools json lzma math "
        "multiprocessing random re sqlite3 statistics string subprocess threading typing unittest uuid xml.dom zlib "
        "zoneinfo"
    )
    imports = "".join(f"import {name}\n" for name in names.split())
    result = patient.run(f"{imports}asyncio.run(asyncio.sleep(0))\nimport os; print(os.cpu_count())")
    assert result.end_reason == "ok", result.stderr
    assert result.stdout == "4\n", "pools of a thread for each core fit into the limit of processes"


def test_threads_share_a_sandbox_and_each_call_has_its_own(patient: Sandbox) -> None:
    results: dict[int, str] = {}

    def work(n: int) -> None:
        program = f"import os, time\nopen('x{n}', 'w')\ntime.sleep(0.2)\nprint(os.listdir('.'), {n})"
        results[n] = patient.run(program).stdout

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {n: f"['x{n}'] {n}\n" for n in range(8)}
    if os.getuid() == 0:
        uids = {slot.uid for slot in patient._free}
        assert len(uids) == len(patient._free) > 1, "each has a user of its own"
    assert_nothing_runs(patient)


def test_what_a_killed_trainer_has_left_in_a_group_is_killed() -> None:
    """Covers bubblewrap's child, which waits without end if its parent is killed before it has mapped the user."""
    groups = Cgroups()
    if not groups._parents:
        pytest.skip("this process may make no control group")
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = groups._parents[0] / f"{cgroup._prefix()}{ended.pid}-left"
    folder.mkdir()
    with subprocess.Popen(["sleep", "60"]) as left:
        (folder / "cgroup.procs").write_text(str(left.pid))
        Cgroups()
        assert left.wait(10) == -signal.SIGKILL
    Cgroups()
    assert not folder.exists()


def test_close_leaves_no_process_file_or_cgroup() -> None:
    made = Sandbox(Limits(wall_seconds=600.0, cpu_seconds=600))
    folder = made._image.folder
    errors: list[Exception] = []

    def work() -> None:
        try:
            made.run("import time\ntime.sleep(1000)")
        except SandboxBroken as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(processes_of(made)) >= 6)
    session = made.session()
    assert session.execute("1") == "1\n"
    made.close()
    for thread in threads:
        thread.join(60)
    made.close()
    assert [str(error) for error in errors] == ["the sandbox was closed"] * 2
    assert session.execute("1") == "[the session is over]"
    assert processes_of(made) == [] and not folder.exists()
    assert not [
        group
        for parent in made._cgroups._parents
        for group in parent.glob(f"*-{os.getpid()}-*")
        if (group / "cgroup.procs").read_text()
    ]
    with pytest.raises(SandboxBroken, match="closed"):
        made.run("pass")


@pytest.mark.bubblewrap
@pytest.mark.slow
def test_a_killed_trainer_leaves_no_process_and_its_files_are_removed() -> None:
    script = (
        "from sspo_sandbox import Limits, Sandbox\n"
        "sandbox = Sandbox(Limits(wall_seconds=600.0))\nprint(sandbox._image.folder, flush=True)\n"
        "sandbox.run('import time, os\\nos.fork()\\ntime.sleep(1000)')\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    folder = Path(trainer.stdout.readline().strip())

    def alive() -> list[str]:
        names = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [p.name for p in names if folder.name in _command_line(p)]

    wait_until(lambda: bool(alive()))
    time.sleep(0.3)
    trainer.kill()
    trainer.communicate(timeout=60)
    wait_until(lambda: not alive())
    assert folder.exists()
    Image().close()
    assert not folder.exists()


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def test_no_descriptors_and_no_threads_stay_open(sandbox: Sandbox) -> None:
    sandbox.run("pass")
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for program in ("pass", "while True: print('x' * 10000)", "1/0", "import os; os.closerange(0, 100)"):
        sandbox.run(program)
        sandbox.check(program, ["assert True"])
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (before, threads)


@pytest.mark.parametrize("victim", ["bwrap", "judge"])
@pytest.mark.parametrize("how", ["tests", "cases"])
def test_a_kill_from_outside_is_not_a_verdict(patient: Sandbox, victim: str, how: str) -> None:
    """The sandbox is made again; if each one is killed, the sandbox is broken, and the program does not fail."""
    program = "import time\ntime.sleep(1)\nprint(3)\ndef f(): return 3\n"
    tests, cases = (["assert f() == 3"], ()) if how == "tests" else ((), (Case(stdin="", stdout="3"),))

    def first() -> list[int]:
        return [p.pid for p in psutil.Process().children(recursive=True) if _is_victim(p.pid, victim)]

    def kill(times: int) -> None:
        for _ in range(times):
            wait_until(lambda: bool(first()))
            time.sleep(0.3)  # the program has begun
            (pid,) = first()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: pid not in first())

    with ThreadPoolExecutor(1) as killer:
        done = killer.submit(kill, 1)
        assert patient.check(program, tests, cases).reason == "passed"
        done.result()
        done = killer.submit(kill, 3)
        with pytest.raises(SandboxBroken, match=r"killed from outside|could not be made"):
            patient.check(program, tests, cases)
        done.result()
    wait_until(lambda: not processes_of(patient))  # the machine's init reaps processes that have lost their parent


def _is_victim(pid: int, victim: str) -> bool:
    with contextlib.suppress(OSError):
        is_bwrap = "bwrap" in _command_line(Path(f"/proc/{pid}"))
        numbers = Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].partition("\n")[0].split()
        return is_bwrap and len(numbers) == 1 if victim == "bwrap" else not is_bwrap and numbers[1:] == ["1"]
    return False


@pytest.mark.parametrize("how", ["run", "tests", "cases", "session"])
def test_signals_to_all_processes_of_a_job_do_not_end_a_program(patient: Sandbox, how: str) -> None:
    """A program can still end the processes that it has started with the same signals."""
    program = (
        "import os, signal, sys, time\n"
        "for _ in range(100):\n    time.sleep(0.01)\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(60)\n    os._exit(0)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "def f():\n    return 3\n"
    )
    session = patient.session() if how == "session" else None
    if session is not None:
        session.execute("")
    found = []
    calls = {
        "run": lambda: patient.run(program).stdout,
        "tests": lambda: patient.check(program, tests=["assert f() == 3"]).reason,
        "cases": lambda: patient.check(program, cases=[Case(stdin="", stdout="-15")]).reason,
        "session": lambda: session and session.execute(program),
    }
    thread = threading.Thread(target=lambda: found.append(calls[how]()))
    thread.start()
    wait_until(lambda: any("/python/bin/python3" in line for line in processes_of(patient)))
    time.sleep(0.3)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "multiprocessing" not in " ".join(child.cmdline()):  # the process that those of other tests come from
                for number in (signal.SIGTERM, signal.SIGUSR1):
                    child.send_signal(number)
    thread.join(60)
    assert [text.strip() for text in found] == [{"tests": "passed", "cases": "passed"}.get(how, "-15")]
    if session is not None:
        session.close()


def test_a_sandbox_that_cannot_be_started_is_tried_again_and_then_an_error(patient: Sandbox, monkeypatch) -> None:
    start, failures = subprocess.Popen, [True, False, True, True, True]

    def start_some(*arguments, **options):
        if failures.pop(0):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(*arguments, **options)

    patient.run("")
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(subprocess, "Popen", start_some)
    assert patient.run("print(1)").stdout == "1\n"
    with pytest.raises(SandboxBroken, match=r"could not be made: .*temporarily unavailable"):
        patient.run("print(1)")
    assert len(os.listdir("/proc/self/fd")) == len(before) and failures == []


def test_without_bubblewrap_there_is_no_sandbox_and_the_remedy_is_named(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        Sandbox()


def test_a_cgroup_limits_all_processes_together(patient: Sandbox) -> None:
    if not Cgroups().can_limit_memory:
        assert not patient.has_total_memory_limit, "docs/sandbox.md: the limit is that of each process"
        return
    program = (
        "import os, time\n"
        f"for _ in range(3):\n  if os.fork() == 0:\n    x = bytearray({LIMITS.memory_bytes // 2})\n"
        "    for i in range(0, len(x), 4096): x[i] = 1\n    time.sleep(10)\n    os._exit(0)\n"
        "print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)))\n"
    )
    result = patient.run(program)
    assert "-9" in result.stdout or result.end_reason == "memory", result


def test_a_filter_for_each_architecture() -> None:
    for machine in ("x86_64", "aarch64"):
        program = seccomp_filter(machine)
        assert len(program) % 8 == 0 and len(program) > 8 * 100
    assert seccomp_filter("x86_64") != seccomp_filter("aarch64")
    with pytest.raises(SandboxError, match="riscv64"):
        seccomp_filter("riscv64")


@pytest.mark.bubblewrap
@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_has_the_same_sandbox(public_path: Path) -> None:
    """Runs the package's own files with the machine's Python, as a user that is not root."""
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
    assert python, "there is no Python here that an ordinary user can run: apt-get install python3"
    shutil.copytree(Path(sspo_sandbox.__file__).parent, public_path / "sspo_sandbox")
    script = (
        "import os\nfrom sspo_sandbox import open_sandbox\n"
        "sandbox = open_sandbox({'processes': 20, 'memory_bytes': 1 << 28})\n"
        "print(os.getuid(), sandbox.run('print(6 * 7)').stdout, sandbox.has_total_memory_limit)\nsandbox.close()\n"
    )
    user = ["setpriv", "--reuid=2000000001", "--regid=2000000001", "--clear-groups"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(public_path), "HOME": "/", "TMPDIR": "/tmp"}
    done = subprocess.run(
        [*user, python, "-B", "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "2000000001 42\n False\n", done.stderr
