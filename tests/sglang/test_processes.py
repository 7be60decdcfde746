"""Servers end with the run, for every way in which the run may end. Servers start as users' do, and not as forks."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engines import sglang
from megatron_sspo.rollout.servers import process as server_process
from tests.sglang.served import until


@pytest.fixture(autouse=True)
def _own_interpreters(monkeypatch):
    monkeypatch.setattr(server_process, "subprocess", subprocess)


def servers_of(folder):
    """Returns the server processes whose command line contains this folder, and their children."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or []) and "server_program.py" in " ".join(
            process.info["cmdline"]
        ):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process, *process.children(recursive=True)]
    return found


def shared_memory(processes):
    """Returns the files of SGLang's shared memory that these processes have mapped; other servers may run."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            found |= {Path(part.path) for part in process.memory_maps() if part.path.startswith("/dev/shm/sglang_")}
    return found


@pytest.fixture
def temporary():
    """A temporary folder with a short path: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_no_server_is_left_when_the_trainer_is_killed(folders, tmp_path, temporary, how):
    model = tmp_path / "model"
    model.symlink_to(folders["dense"])
    program = (
        "import sys, time; from pathlib import Path; from megatron_sspo.rollout.engines import sglang\n"
        f"engine = sglang.engine(Path({str(model)!r}), run_folder=Path({str(tmp_path)!r}))\n"
        "print('up', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    assert trainer.stdout.readline() == "up\n"
    started = servers_of(model)
    own = shared_memory(started)
    assert own and list(temporary.glob("megatron-sspo-server-*"))
    ports = {c.laddr.port for p in started for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
    assert len(started) >= 3 and ports
    os.kill(trainer.pid, how)
    trainer.wait(timeout=10)
    deadline = time.monotonic() + 15
    while any(process.is_running() for process in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [process for process in started if process.is_running()]
    listening = {c.laddr.port for c in psutil.net_connections() if c.status == psutil.CONN_LISTEN}
    assert not ports & listening
    until(lambda: not [*temporary.glob("megatron-sspo-server-*"), *filter(Path.exists, own)], 10)


def test_no_file_is_left_when_an_engine_is_closed(folders, tmp_path, temporary, monkeypatch):
    """Checks the clean-up of sockets and shared memory, which SGLang leaves when an engine kills it."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    engine = sglang.engine(folders["dense"], run_folder=tmp_path / "run")
    (server,) = engine.pool.servers
    main = psutil.Process(server.process.pid)
    own = shared_memory([main, *main.children(recursive=True)])
    assert own and list(temporary.glob("megatron-sspo-server-*/tmp*"))
    # a server that loses one of its processes soon ends by itself
    worker = next(p for p in main.children() if "detokenizer" in " ".join(p.cmdline()))
    worker.kill()
    until(lambda: server.process.has_ended, 40)
    engine.close()
    assert not [*temporary.glob("megatron-sspo-server-*"), *filter(Path.exists, own)]


def test_no_server_is_left_when_the_trainer_is_killed_during_startup(folders, tmp_path):
    """Kills the trainer as soon as the server has workers."""
    model = tmp_path / "model"
    model.symlink_to(folders["dense"])
    program = (
        "from pathlib import Path; from megatron_sspo.rollout.engines import sglang\n"
        f"sglang.engine(Path({str(model)!r}), run_folder=Path({str(tmp_path)!r}))"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 120
        while not (workers := workers_of(model)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert workers
        started = servers_of(model)
    finally:
        trainer.kill()
        trainer.wait(timeout=10)
    deadline = time.monotonic() + 15
    while any(process.is_running() for process in [*started, *workers]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [process for process in [*started, *workers] if process.is_running()]


def workers_of(folder):
    """Returns SGLang's worker processes: the children in the session of their server, in which its watcher is not."""
    found = []
    for process in servers_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, ProcessLookupError):
            parent = process.parent()
            is_child = parent is not None and "server_program.py" in " ".join(parent.cmdline())
            own = is_child and os.getsid(process.pid) == os.getsid(parent.pid)
            if own and "resource_tracker" not in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_a_server_that_does_not_start_reports_the_reason(folders, tmp_path):
    with pytest.raises(UserError, match=r"a rollout server did not start: .* ended with exit code") as raised:
        sglang.engine(folders["dense"], run_folder=tmp_path, server={"no_such_option": 1})
    assert "no-such-option" in str(raised.value) and "\n" not in str(raised.value)
