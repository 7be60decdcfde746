"""Checks before a run starts, on the launching machine and among the ranks."""

import http.server
import json
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.preflight import free_memory, resources
from megatron_sspo.preflight.preflight import preflight
from megatron_sspo.preflight.ranks import versions
from megatron_sspo.recipe import load_recipe
from megatron_sspo.rollout.servers.server_program import KEY
from tests.policy.launcher import launch
from tests.weights.test_families import QWEN3_30B_A3B

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "examples" / "tiny_moe.py")


@pytest.mark.slow
def test_ranks_that_are_not_alike(tmp_path) -> None:
    shutil.copytree(ROOT / "examples" / "tiny_moe", tmp_path / "model")
    other = tmp_path / "other" / "transformers-4.0.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.0.0\n")
    launch(Path(__file__).with_name("ranks.py"), 2, tmp_path)
    found, of_rank_1 = (json.loads((tmp_path / f"found{rank}.json").read_text()) for rank in (0, 1))
    assert found == of_rank_1, "a rank that does not hear of it would wait"
    host = socket.gethostname()
    assert found["as it should be"] == ""
    assert f"its share of the memory of {host} has" in found["memory"]
    assert "is activations: --set megatron.recompute_granularity=full" in found["memory"]
    assert found["paths"].startswith("rank 1 does not see runs/relative of rank 0 on its host: use folders")
    assert found["values"].startswith(f"the recipe gives other values on rank 1 on {host} than on rank 0: ")
    assert "optimizer.lr is 0.1 there, and here 0.0: let it depend neither on time nor on chance" in found["values"]
    assert found["same prompts"] == ""
    assert found["prompts"].startswith("evaluation.sets.a.prompts has other rows on rank 1 than on rank 0: ")
    assert found["demonstrations"].startswith(found["prompts"][:80])
    mine = versions()["transformers"]
    assert found["versions"].startswith(
        f"rank 1 on {host} has transformers 4.0.0, but rank 0 on {host} has {mine}: start all ranks from one"
    )


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == "Bearer right"
        self.send_response(200 if is_known else 401)
        self.end_headers()
        self.wfile.write(self.server.answer)  # pyright: ignore[reportAttributeAccessIssue]

    def log_message(self, format: str, *_: object) -> None:
        pass


def test_servers_that_do_not_answer_or_want_another_key(monkeypatch) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    server.answer = b'{"tp_size": 2}'
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        monkeypatch.setenv(KEY, "right")
        resources.check_servers([url], 2)
        with pytest.raises(UserError, match=rf"{url} has tp_size 2.*set rollouts.options.server.tp_size to 2"):
            resources.check_servers([url])
        with pytest.raises(UserError, match=rf"{url} has no loader.*--custom-weight-loader megatron_sspo_delta.load"):
            resources.check_servers([url], 2, delta=True)
        monkeypatch.setenv(KEY, "wrong")
        with pytest.raises(UserError, match=rf"{url}/get_model_info answered 401.*{KEY}"):
            resources.check_servers([url])
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(UserError, match=rf"a rollout server does not answer: {url}"):
        resources.check_servers([url])


@pytest.mark.parametrize(
    ("assignments", "largest", "remedy"),
    [
        (["megatron={}"], "activations", "--set megatron.recompute_granularity=full"),
        ([], "the optimizer's state", "raise parallel.data"),
        (["parallel.data=512"], "gradients", "raise parallel.tensor"),
        (["parallel.data=512", "tokens_per_microbatch=400000"], "", "lower tokens_per_microbatch"),
    ],
)
def test_the_remedy_is_for_what_is_largest(assignments, largest, remedy) -> None:
    run = load_recipe(str(ROOT / "examples" / "qwen3_30b_a3b_math.py"), assignments)
    with pytest.raises(UserError, match=rf"is {largest}.*: {remedy}"):
        resources.check_memory(run, QWEN3_30B_A3B, 30 * 10**9, "a GPU", on_cuda=True)
    resources.check_memory(run, QWEN3_30B_A3B, 10**13, "a GPU", on_cuda=True)
    resources.check_memory(replace(run, check_memory=False), QWEN3_30B_A3B, 30 * 10**9, "a GPU", on_cuda=True)


@pytest.mark.parametrize(
    ("assignments", "parts", "remedy"),
    [
        ([], "45.8 GB for the optimizer, 0.3 GB for copies on their way, 53.4 GB while", "lower optimizer.offload"),
        (["optimizer.offload=0"], "53.4 GB while a checkpoint is saved", "use more nodes"),
        (["penalties.kl_coef=0.1"], "20.7 GB for the reference weights", "lower optimizer.offload"),
        (["rollouts.options.delta=20"], "61.1 GB for the weights of the last sync", "lower optimizer.offload"),
        (["rollouts.options.delta=20", "rollouts.options.quantize=fp8"], "31.2 GB for the weights of", "lower"),
    ],
)
def test_a_host_has_the_memory_of_its_ranks(assignments, parts, remedy) -> None:
    run = load_recipe(str(ROOT / "examples" / "qwen3_30b_a3b_one_node.py"), assignments)
    of_rank_0 = resources.host_memory(run, QWEN3_30B_A3B)
    needed = 8 * of_rank_0.total - 7 * of_rank_0.last_sync
    with pytest.raises(UserError, match=rf"{parts}.*, but n1 has \d+\.\d GB free: {remedy}"):
        resources.check_host_memory(run, QWEN3_30B_A3B, 8, needed - 1, "n1")
    resources.check_host_memory(replace(run, check_memory=False), QWEN3_30B_A3B, 8, 0, "n1")
    line = resources.check_host_memory(run, QWEN3_30B_A3B, 8, needed + 10**9, "n1")
    assert line.endswith("of which its ranks leave 1.0 GB")


@pytest.mark.parametrize(
    ("names", "reclaimable"),
    [
        (("memory.max", "memory.current"), "inactive_file"),
        (("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"),
    ],
)
def test_the_limit_of_a_group_around_this_process_counts(tmp_path, monkeypatch, names, reclaimable) -> None:
    (tmp_path / "cgroup").write_text("7:pids:/\n4:memory:/slurm/job\n0::/slurm/job\n")
    monkeypatch.setattr(free_memory, "_LISTED", tmp_path / "cgroup")
    monkeypatch.setattr(free_memory, "_MOUNTED", tmp_path)
    unlimited = free_memory.free_memory()
    assert unlimited == pytest.approx(psutil.virtual_memory().available, rel=0.5)
    (tmp_path / names[1]).write_text("3000")
    (tmp_path / "memory.stat").write_text(f"anon 9\n{reclaimable} 100\n")
    for limit, found in (("5000", 5000 - 3000 + 100), ("max", pytest.approx(unlimited, rel=0.5))):
        (tmp_path / names[0]).write_text(limit)
        assert free_memory.free_memory() == found


def test_an_embedded_engine_counts() -> None:
    run = load_recipe(RECIPE)
    small = replace(run, rollouts=replace(run.rollouts, options={"max_batch_size": 1}))
    config = resources.read_model_config(run)
    estimates = [resources.estimate(r, config, on_cuda=False)[0].engine for r in (run, small)]
    assert estimates[0] > estimates[1] > 4 * 1_800_000


def test_what_a_kill_has_left_of_a_checkpoint_counts_as_free(tmp_path, monkeypatch) -> None:
    run = replace(load_recipe(RECIPE), checkpoint_every=0)
    left = tmp_path / "run" / "checkpoints" / ".update-000002" / "trainer"
    config = resources.read_model_config(run)
    needed = resources.checkpoint_bytes(run, config) + resources.model_bytes(run, config)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, needed - 1000))
    with pytest.raises(UserError, match="make room"):
        resources.check_disk(run, config, tmp_path / "run")
    left.mkdir(parents=True)
    (left / "__0_0.distcp").write_bytes(bytes(1000))
    resources.check_disk(run, config, tmp_path / "run")


@pytest.mark.parametrize(
    ("updates", "every", "kept", "there", "needed"),
    [(9, 0, 2, 0, 1), (9, 3, 2, 0, 3), (9, 3, 1, 0, 2), (9, 3, 9, 0, 4), (4, 4, 2, 0, 2), (9, 3, 2, 2, 1)],
)
def test_checkpoints_that_are_on_the_disk_at_a_time(tmp_path, monkeypatch, updates, every, kept, there, needed) -> None:
    run = replace(load_recipe(RECIPE), num_updates=updates, checkpoint_every=every, checkpoints_kept=kept)
    assert run.warm_start is not None, "which makes one checkpoint more"
    for update in range(there):
        (tmp_path / "run" / "checkpoints" / f"update-{update:06d}").mkdir(parents=True)
    config = resources.read_model_config(run)
    free = needed * resources.checkpoint_bytes(run, config) + resources.model_bytes(run, config)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, free))
    resources.check_disk(run, config, tmp_path / "run")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, free - 1))
    what = "a checkpoint" if needed == 1 else f"{needed} checkpoints at a time"
    with pytest.raises(UserError, match=f"free, and {what} and the finished model take"):
        resources.check_disk(run, config, tmp_path / "run")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (
            ["reward=code", 'reward_options={"concurrency": -1}'],
            "concurrency is -1: it must be greater than or equal to 0",
        ),
        (["reward=codeact", 'reward_options={"limits": {"wall_seconds": 0}}'], "wall_seconds is 0"),
        (['rollouts.options={"server": {"port": 1}}'], "server has 'port': leave it out"),
        (['rollouts.options={"urls": ["h:1"]}'], "urls holds 'h:1'"),
        (
            ['rollouts.options={"pause": "never"}'],
            "pause is 'never': it must be 'retract', 'abort' or 'in_place'",
        ),
    ],
)
def test_options_that_contradict_each_other_are_found_before_the_start(assignments, message) -> None:
    engine = [] if assignments[0].startswith("reward") else ["rollouts.engine=sglang"]
    with pytest.raises(UserError, match=message):
        preflight(load_recipe(RECIPE, [*engine, *assignments]), resume=None, elsewhere=True)


def test_the_python_of_servers_exists() -> None:
    sets = ["rollouts.engine=sglang", 'rollouts.options={"python": "/nowhere/python"}']
    with pytest.raises(
        UserError, match=r"there is no /nowhere/python to run SGLang's server: .*rollouts\.options\.python"
    ):
        preflight(load_recipe(RECIPE, sets), resume=None)
    preflight(load_recipe(RECIPE, sets), resume=None, elsewhere=True)
