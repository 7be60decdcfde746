"""Starting a server, as far as it can be seen without one."""

import subprocess
import sys
import time

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout import serve
from megatron_sspo.rollout.servers import ServerProcess, command_line, find_python


def test_options_become_arguments():
    given = {"tp_size": 2, "skip_warmup": True, "disable_x": False, "nothing": None, "names": ["a", "b"]}
    assert command_line(given) == ["--tp-size", "2", "--skip-warmup", "--names", "a", "b"]


def test_a_python_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="make install-sglang"):
        find_python(str(tmp_path / "python"))


def test_a_server_without_sglang_says_so(tmp_path):
    """With this environment's interpreter, which has no sglang."""
    process = ServerProcess(
        find_python(sys.executable), "sglang.launch_server", {}, {}, log=tmp_path / "logs" / "server.log", key="secret"
    )
    assert process.ended() == ""
    process.start()
    assert process.url.startswith("http://127.0.0.1:")
    deadline = time.monotonic() + 60
    while not process.ended() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "ended with exit code 1" in process.ended() and "sglang" in process.ended()
    process.stop()
    process.stop()  # more than one call does no harm


def test_the_trainers_own_modules_do_not_stand_in_the_servers_way(tmp_path):
    """`rollout/` holds a module called sglang, and is the folder of the script that starts the server."""
    program = "import runpy, sys; runpy.run_module = lambda name, **_: print(sys.path, sys.argv)\n"
    program += f"sys.argv = ['serve.py', 'sglang.launch_server', '--x']; exec(open({serve.__file__!r}).read())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={serve.KEY: "-secret", serve.PARENT: str(__import__("os").getpid())},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "'serve.py', '--x', '--api-key=-secret', '--admin-api-key=-secret'" in done.stdout
    assert "megatron_sspo/rollout" not in done.stdout
