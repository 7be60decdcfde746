import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.batching.pack import pack
from megatron_sspo.run import Model, Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Sampling
from megatron_sspo.weights.family import load_family
from sspo_rehearsal.batch import make_batch, rehearsed_run, workload
from sspo_rehearsal.ledger import WITH_FROZEN
from sspo_rehearsal.sizes import KNOWN, SizesFolder, find_config
from tests.forking import run_python


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "megatron_sspo", "launch", *arguments, folder=Path(__file__).parents[3], timeout=300)


@pytest.mark.slow
def test_a_rehearsal_reports_every_stage(tmp_path: Path) -> None:
    layout = "parallel.data=2", "parallel.pipeline=2", "parallel.expert=2"
    output = tmp_path / "found" / "rehearsal.json"
    settings = [part for value in layout for part in ("--set", value)]
    done = launch("examples/tiny_moe.py", *settings, "--rehearse", "--machine", "a100x8", "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "tiny_moe: 4 ranks (data 2, pipeline 2, expert 2)" in done.stdout
    assert "stage 1" in done.stdout and "stage 2" in done.stdout and "warning: " in done.stdout
    assert "Warning" not in done.stderr and "rank 2: step" in done.stderr
    found = json.loads(output.read_text())
    assert [stage["stage"] for stage in found["stages"]] == [0, 1]
    assert found["prediction"]["update"] > 0 and found["machine"] == "a100x8"
    assert found["parallel"]["pipeline"] == 2


@pytest.mark.slow
def test_one_rank_and_a_skew(tmp_path: Path) -> None:
    found = {}
    for skew in ("1", "3"):
        output = tmp_path / f"{skew}.json"
        done = launch("examples/tiny_moe.py", "--rehearse", "--rank", "0", "--skew", skew, "--output", str(output))
        assert done.returncode == 0, done.stderr
        (stage,) = json.loads(output.read_text())["stages"]
        found[skew] = sum(stage["peaks"]["update"].values()), stage["flops"]["forward"]
    assert found["3"][0] > 1.1 * found["1"][0], "the rank with the popular experts holds more"
    assert found["3"][1] > 1.1 * found["1"][1]


@pytest.mark.slow
def test_frozen_weights_have_no_gradients(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    adapters = ("--set", 'lora.targets=["attention", "experts"]', "--set", "lora.rank=8", "--set", "warm_start=none")
    done = launch("examples/tiny_moe.py", "--rehearse", "--rank", "0", *adapters, "--output", str(output))
    assert done.returncode == 0, done.stderr
    (stage,) = json.loads(output.read_text())["stages"]
    forward, backward = stage["flops"]["forward"], stage["flops"]["backward"]
    frozen = stage["flops"]["forward" + WITH_FROZEN]
    assert stage["flops"]["backward" + WITH_FROZEN] == frozen, "the gradient of the input alone"
    # what an update computes; attention's backward pass computes its scores again
    assert 3 * forward - frozen == pytest.approx(forward + backward, rel=0.02)
    assert 3 * forward > 1.3 * (forward + backward)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--rehearse", "--machine", "cray"], "--machine is 'cray': name one of a100x8"),
        (["--rehearse", "--rank", "2"], "--rank is 2, and the layout has ranks 0 to 1"),
        (["--rehearse", "--stage", "2"], "--stage is 2, and the layout has stages 1 to 1"),
        (
            ["--rehearse", "--skew", "4", "--set", "parallel.expert=1", "--set", "model.path=Qwen3-8B"],
            "leave out --skew",
        ),
    ],
)
def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(["launch", "examples/tiny_moe.py", *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_without_this_library_the_trainer_says_what_to_install(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sspo_rehearsal.command", None)
    assert main(["launch", "examples/tiny_moe.py", "--rehearse"]) == 2
    assert "pip install sspo-rehearsal" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(KNOWN.glob("*.json")), ids=lambda path: path.stem)
def test_known_models_have_the_sizes_of_their_names(path: Path) -> None:
    config, source = find_config(f"models/{path.stem}")
    assert source == f"the sizes of {path.stem}"
    shapes = SizesFolder(config).shapes()
    count = sum(map(math.prod, shapes.values()))
    qwen = {"Qwen2.5-7B-Instruct": 7.62, "Qwen3-8B": 8.19, "Qwen3-14B": 14.77, "Qwen3-30B-A3B": 30.53}
    others = {"GLM-4.5-Air": 106.85, "gpt-oss-120b": 116.83, "Qwen3.5-35B-A3B": 34.66, "DeepSeek-V3": 671.03}
    wanted = {**qwen, **others}[path.stem.removesuffix("-128k")]
    assert count / 1e9 == pytest.approx(wanted, abs=0.005)
    load_family(config)


def run_of(parallel: Parallel, prompts: int) -> Run:
    sampling = Sampling(max_tokens=60)
    rollouts = Rollouts(engine="sglang", prompts_per_update=prompts, group_size=2, sampling=sampling)
    return Run(
        name="run",
        model=Model(path="model"),
        prompts=Prompts(source="s", max_tokens=40),
        num_updates=1,
        parallel=parallel,
        rollouts=rollouts,
        tokens_per_microbatch=200,
    )


def test_the_workload_is_packed_as_an_update_is() -> None:
    work = workload(run_of(Parallel(data=2), 16))
    assert (work.sequences, work.microbatches, work.per_microbatch, work.rehearsed) == (32, 8, 2, 2)
    assert work.tokens == 3200 and work.factor == 4
    assert len(make_batch(work)[0].rollouts) == 8, "two microbatches of two sequences on each of two ranks"
    shorter = workload(run_of(Parallel(data=2), 16), prompt_tokens=10, response_tokens=30)
    assert (shorter.microbatches, shorter.per_microbatch) == (4, 4), "sixteen a rank, of which five would fit into one"
    assert shorter.factor == 2
    assert workload(run_of(Parallel(data=2), 16), at_most=5).rehearsed == 5


def test_rehearsed_microbatches_are_as_full_as_the_fullest() -> None:
    run = run_of(Parallel(), 7)
    work = workload(run, prompt_tokens=10, response_tokens=30, at_most=3)
    assert (work.microbatches, work.per_microbatch) == (3, 5), "fourteen are packed as 5, 5 and 4"
    assert work.factor == 14 / 15
    small = workload(run, prompt_tokens=10, response_tokens=40, at_most=2)  # four fit into one
    assert (small.microbatches, small.per_microbatch) == (4, 4)
    lengths = [50] * small.rehearsed_sequences
    packed = pack(lengths, num_ranks=1, max_tokens=rehearsed_run(run, small).tokens_per_microbatch)
    assert [len(members) for members in packed[0]] == [4, 4]
