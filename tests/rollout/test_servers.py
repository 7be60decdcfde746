"""The start of a server, as far as it can be tested without SGLang."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.rollout.servers import server_program
from megatron_sspo.rollout.servers.build import build_servers, server_dtype
from megatron_sspo.rollout.servers.options import Options, check, check_gpus
from megatron_sspo.rollout.servers.process import ServerProcess, command_line, find_python
from megatron_sspo.rollout.weight_sync.adapter import check_model
from megatron_sspo.run import LoRA


def test_options_become_arguments():
    given = {"tp_size": 2, "skip_warmup": True, "disable_x": False, "nothing": None, "names": ["a", "b"]}
    given["overrides"] = {"rope": [1, None]}
    overrides = ["--overrides", '{"rope": [1, null]}']
    assert command_line(given) == ["--tp-size", "2", "--skip-warmup", "--names", "a", "b", *overrides]


def test_a_server_without_sglang_ends_with_a_message(tmp_path):
    """Uses this environment's interpreter, which has no sglang."""
    with pytest.raises(UserError, match="make install-sglang"):
        find_python(str(tmp_path / "python"))
    process = ServerProcess(
        find_python(sys.executable), "sglang.launch_server", {}, {}, log=tmp_path / "logs" / "server.log", key="secret"
    )
    assert process.exit_message() == ""
    process.start()
    assert process.url.startswith("http://127.0.0.1:")
    deadline = time.monotonic() + 60
    while not process.exit_message() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "ended with exit code 1" in process.exit_message() and "sglang" in process.exit_message()
    process.stop()
    process.stop()  # a second call is allowed


def test_socket_paths_are_short_enough(tmp_path, monkeypatch):
    """Linux cuts the path of a socket at 107 bytes, and a job's TMPDIR may be long."""
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    python = tmp_path / "python"
    printed = tmp_path / "printed"
    python.write_text(
        f'#!/bin/sh\nprintf %s "$TMPDIR" > {printed}.part && mv {printed}.part {printed}\nexec sleep 60\n'
    )
    python.chmod(0o755)
    process = ServerProcess(python, "sglang.launch_server", {}, {}, log=tmp_path / "server.log", key="secret")
    process.start()
    try:
        deadline = time.monotonic() + 60
        while not printed.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        used = printed.read_text(encoding="utf-8")
    finally:
        process.stop()
    assert Path(used).parent == Path("/tmp")
    assert len(used) + len("/tmp12345678") <= 107 and not Path(used).exists()


@pytest.fixture
def gpus(monkeypatch):
    """Returns a function `gpus(count, visible)` that makes torch report `count` GPUs."""

    def of(count, visible):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(uuid=f"uuid-{gpu}"))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return of


def made(tmp_path, **options):
    options = Options(run_folder=tmp_path, **options)
    (tmp_path / "config.json").write_text("{}")
    found = build_servers(options, tmp_path, find_python(sys.executable), "key")
    return [(server.process._environment, server.devices) for server in found]


@pytest.mark.parametrize(
    ("visible", "shares"),
    [("", ["0,1", "2,3"]), ("4,5, 6,7", ["4,5", "6,7"]), ("GPU-a,GPU-b,GPU-c,GPU-d", ["GPU-a,GPU-b", "GPU-c,GPU-d"])],
)
def test_servers_share_the_gpus_that_this_process_sees(tmp_path, gpus, visible, shares):
    gpus(4, visible)
    with pytest.raises(UserError, match="3 servers of 2 GPUs each, and 4 GPUs are visible"):
        made(tmp_path, num_servers=3, server={"tp_size": 2})
    found = made(tmp_path, num_servers=2, server={"tp_size": 2}, health_seconds=59.5)
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment, _ in found] == shares
    assert [devices for _, devices in found] == [("uuid-0", "uuid-1"), ("uuid-2", "uuid-3")]
    assert {environment["SGLANG_HEALTH_CHECK_TIMEOUT"] for environment, _ in found} == {"61"}
    # ranks of the trainer on the GPUs of one server hold different amounts, which SGLang would refuse by default
    assert {environment["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] for environment, _ in found} == {"0"}


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ({"model_dtype": "bfloat16"}, "bfloat16", torch.bfloat16),
        ({"model_dtype": "bfloat16", "server": {"dtype": "half"}}, "half", torch.float16),
        ({}, None, None),
    ],
)
def test_servers_on_gpus_have_the_trainers_dtype(tmp_path, gpus, options, given, expected):
    """SGLang would take float16 for a model whose config.json says float32, and the checksums would differ."""
    gpus(1, "")
    options = Options(run_folder=tmp_path, **options)
    (tmp_path / "config.json").write_text("{}")
    (server,) = build_servers(options, tmp_path, find_python(sys.executable), "key")
    assert server.process._arguments["dtype"] == given
    assert server_dtype(options) == expected


@pytest.mark.parametrize("safe_path", [{}, {"PYTHONSAFEPATH": "1"}])
def test_modules_of_the_trainer_do_not_shadow_packages(tmp_path, safe_path):
    """Checks sys.path: the folder of the start script has modules with names such as `client` and `router`."""
    program = "import runpy, sys; runpy.run_module = lambda name, **_: print(sys.path, sys.argv)\n"
    program += "sys.argv = ['server_program.py', 'sglang.launch_server', '--x']; "
    program += f"exec(open({server_program.__file__!r}).read())"
    plain = subprocess.check_output([sys.executable, "-Pc", "import sys; print(sys.path)"], env={}, text=True)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={server_program.KEY: "-secret", server_program.PARENT: str(os.getpid()), **safe_path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "'server_program.py', '--x', '--api-key=-secret', '--admin-api-key=-secret'" in done.stdout
    assert "megatron_sspo/rollout" not in done.stdout and plain.strip() in done.stdout


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({}, True),
        ({"urls": ("http://10.0.0.1:30000",), "release_memory": True}, True),
        ({"urls": ("http://10.0.0.1:30000",)}, False),
    ],
)
def test_nccl_does_not_send_to_servers_on_the_senders_gpus(monkeypatch, options, is_refused):
    given = Options(transport="distributed", **options)
    check_gpus(given)  # gloo does
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if not is_refused:
        check_gpus(given)
        return
    with pytest.raises(UserError, match="NCCL takes one process for each GPU"):
        check_gpus(given)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    check_gpus(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"router": {"api-key": "x"}}, "'api-key': leave it out"),
        ({"urls": ("10.0.0.1:30000",)}, "write a server's URL as http://"),
        ({"pause": "in_place"}, "disable_radix_cache"),
        ({"lora": "adapter"}, 'pause is "retract"'),
        ({"lora": "adapter", "pause": "abort", "quantize": "fp8"}, "leave out quantize"),
        ({"delta": 4, "verify_every": 0}, "set verify_every, or delta=0"),
        ({"urls": ("http://10.0.0.1:30000",), "transport": "ipc"}, 'choose "tensor"'),
        ({"quantize": "fp8", "server": {"json_model_override_args": "{}"}}, "leave json_model_override_args out"),
    ],
)
def test_options_that_would_be_misread(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check(Options(**options))


@pytest.mark.parametrize("target", ["mlp", "experts"])
def test_adapters_of_mlps_and_of_experts_are_refused_beside_experts(folders, target):
    check_model(LoRA(targets=("attention", "mlp")), read_json(folders["llama_tied"] / "config.json"))
    with pytest.raises(UserError, match=rf"lora.targets is \('attention', '{target}'\) in a model with experts"):
        check_model(LoRA(targets=("attention", target)), read_json(folders["qwen3_moe"] / "config.json"))
