"""The environment that servers get, and the variables on which they agree with the trainer."""

import os
import sys
import time

import pytest
import torch

from megatron_sspo.rollout.servers.environment import agree_on_nccl, without_trainers_own
from megatron_sspo.rollout.servers.process import ServerProcess, find_python

OF_A_RANK = {
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "1"),
    **dict.fromkeys(("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"), "2"),
    **dict.fromkeys(("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"), "3"),
    **dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True"),
}
OF_BOTH = {"NCCL_CUMEM_ENABLE": "1", "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", "HF_HOME": "/cache"}


def test_what_describes_a_rank_is_left_out():
    assert without_trainers_own({**OF_A_RANK, **OF_BOTH}) == OF_BOTH


def test_a_server_gets_nothing_of_the_trainers_ranks(tmp_path, monkeypatch):
    """Starts a module that prints its environment in place of SGLang."""
    for name, value in {**OF_A_RANK, **OF_BOTH}.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "server.log"
    (tmp_path / "show_environment.py").write_text("import os\nprint('names', *sorted(os.environ), flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = ServerProcess(find_python(sys.executable), "show_environment", {}, {}, log=log, key="secret")
    process.start()
    try:
        deadline = time.monotonic() + 120
        while not process.exit_message() and time.monotonic() < deadline:
            time.sleep(0.05)
        found = next(line for line in log.read_text().splitlines() if line.startswith("names ")).split()
    finally:
        process.stop()
    assert set(OF_A_RANK).isdisjoint(found)
    assert set(OF_BOTH) <= set(found)


URLS = ("http://10.0.0.1:30000",)


@pytest.mark.parametrize(
    ("engine", "options", "expected"),
    [
        ("embedded", {}, None),
        ("sglang", {}, "0"),
        ("sglang", {"server": {"enable_symm_mem": True}}, "1"),
        ("sglang", {"urls": URLS}, None),
        ("sglang", {"urls": URLS, "transport": "distributed"}, "0"),
        ("sglang", {"urls": URLS, "release_memory": True}, "0"),
    ],
)
def test_nccl_of_the_trainer_is_as_the_servers(monkeypatch, engine, options, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(os, "environ", {})
    agree_on_nccl(engine, options)
    assert os.environ.get("NCCL_CUMEM_ENABLE") == expected


def test_the_users_value_wins(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(os, "environ", {"NCCL_CUMEM_ENABLE": "1"})
    agree_on_nccl("sglang", {})
    assert os.environ == {"NCCL_CUMEM_ENABLE": "1"}


def test_nothing_is_set_without_gpus(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    agree_on_nccl("sglang", {})
    assert os.environ == {}
