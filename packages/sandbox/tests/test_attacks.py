"""Hostile programs against the real sandbox: each is contained, and leaves neither a process nor a file."""

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packages.sandbox.tests.attack_programs import ATTACKS, PRELUDE, Attack
from packages.sandbox.tests.conftest import LIMITS, assert_nothing_runs
from sspo_sandbox.sandbox import Sandbox


@pytest.fixture(scope="module")
def host(public_path: Path) -> Iterator[dict[str, Any]]:
    """The targets of the attacks: listeners, files that any user may read or write, a process, a secret."""
    folder = public_path
    secret = folder / "secret"
    secret.write_text("a secret of the host")
    (folder / "host_module.py").write_text("")
    key = secrets.token_hex(16)
    os.environ["MEGATRON_SSPO_TEST_SECRET"] = key
    abstract = f"megatron-sspo-test-{key[:8]}"
    with (
        socket.create_server(("0.0.0.0", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_UNIX) as file,
        subprocess.Popen(["sleep", "1000"]) as victim,
    ):
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        tcp.setblocking(False)
        local.bind(f"\0{abstract}")
        local.listen()
        file.bind(str(folder / "socket"))
        file.listen()
        yield {
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "addresses": sorted({"127.0.0.1", "127.0.0.2", socket.gethostbyname("localhost"), "10.0.2.2"}),
            "abstract": abstract,
            "socket": str(folder / "socket"),
            "folder": str(folder),
            "secrets": [str(secret), str(Path(__file__).resolve())],
            "half": key[:16],  # a program that is given the whole key would find it in its own input
            "other_half": key[16:],
            "victim": victim.pid,
            "trainer": os.getpid(),
            "processes": LIMITS.processes,
            "memory": LIMITS.memory_bytes,
            "disk": LIMITS.disk_bytes,
            "sockets": (tcp, udp),
            "process": victim,
        }
        victim.kill()
    del os.environ["MEGATRON_SSPO_TEST_SECRET"]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_contained_and_leaves_nothing(
    sandbox: Sandbox, patient: Sandbox, host: dict[str, Any], attack: Attack
) -> None:
    files_before = sorted(os.listdir(host["folder"]))
    targets = {name: value for name, value in host.items() if name not in ("sockets", "process")}
    used = sandbox if "time" in attack.ends else patient  # a busy machine takes seconds for 500 forks
    result = used.run(PRELUDE + attack.program, json.dumps(targets))
    assert "THROUGH" not in result.stderr + result.stdout, result.stderr[-2000:]
    assert result.end_reason in attack.ends, result
    assert_nothing_runs(used)
    assert host["process"].poll() is None, "the host's process was killed"
    assert sorted(os.listdir(host["folder"])) == files_before
    assert not [path for path in ("/marker", "/tmp/marker", "/var/tmp/marker", "/dev/marker") if os.path.exists(path)]
    for listener in host["sockets"]:
        with pytest.raises(BlockingIOError):
            listener.accept() if listener.type == socket.SOCK_STREAM else listener.recv(100)
    assert patient.run("print(6 * 7)").stdout == "42\n", "the next program is not touched by it"


def test_attacks_succeed_without_a_sandbox(host: dict[str, Any]) -> None:
    """Runs harmless attacks without a sandbox, to show that `THROUGH` is printed at all."""
    harmless = {"the network": ("tcp", "abstract", "socket"), "reading files of the host": host["secrets"]}
    targets = {name: value for name, value in host.items() if name not in ("sockets", "process")}
    for attack in ATTACKS:
        if attack.name in harmless:
            command, given = ["python3", "-I", "-c", PRELUDE + attack.program], json.dumps(targets)
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
            assert all(f"THROUGH: {what}\n" in done.stderr for what in harmless[attack.name]), done.stderr
    host["sockets"][0].accept()
