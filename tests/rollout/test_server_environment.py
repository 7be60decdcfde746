"""The environment that servers get, and the variables on which they agree with the trainer."""

import os
import sys
import textwrap
import time

import pytest
import torch

from megatron_sspo.rollout.servers.environment_variables import agree_on_nccl
from megatron_sspo.rollout.servers.process import ServerProcess, find_python
from megatron_sspo.rollout.servers.server_program import FORK

OF_A_RANK = {
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "1"),
    **dict.fromkeys(("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"), "2"),
    "NCCL_HOSTID": "node-0",
    **dict.fromkeys(("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"), "3"),
    **dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True"),
}
OF_BOTH = {"NCCL_CUMEM_ENABLE": "1", "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", "HF_HOME": "/cache"}


def test_a_server_gets_nothing_of_the_trainers_ranks_and_forks_where_it_is_told_so(tmp_path, monkeypatch):
    for name, value in {**OF_A_RANK, **OF_BOTH}.items():
        monkeypatch.setenv(name, value)
    source = """
        import multiprocessing, os
        multiprocessing.set_start_method("spawn", force=True)
        print("found", multiprocessing.get_start_method(), *os.environ, flush=True)
    """
    for own, method in (({}, "spawn"), ({FORK: "1"}, "fork")):
        first, *found = printed_by(textwrap.dedent(source), own, tmp_path, monkeypatch)
        assert first == method and {FORK, *OF_A_RANK}.isdisjoint(found) and set(OF_BOTH) <= set(found)


def printed_by(source, environment, folder, monkeypatch):
    """Runs a module in place of SGLang, and returns the words that it prints after "found"."""
    log = folder / "server.log"
    (folder / "in_place_of_sglang.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    process = ServerProcess(find_python(sys.executable), "in_place_of_sglang", {}, environment, log=log, key="secret")
    process.start()
    try:
        deadline = time.monotonic() + 120
        while not process.exit_message() and time.monotonic() < deadline:
            time.sleep(0.05)
        found = [line for line in log.read_text().splitlines() if line.startswith("found ")]
        return found[-1].split()[1:]
    finally:
        process.stop()


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
    for on_gpu, given, found in ((True, {}, expected), (False, {}, None), (True, {"NCCL_CUMEM_ENABLE": "2"}, "2")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda on_gpu=on_gpu: on_gpu)
        monkeypatch.setattr(os, "environ", given)
        agree_on_nccl(engine, options)
        assert os.environ.get("NCCL_CUMEM_ENABLE") == found
