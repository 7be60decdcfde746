import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.batching.pack import pack
from megatron_sspo.errors import UserError
from megatron_sspo.rehearsal.batch import make_batch, received_shape, rehearsed_run, workload
from megatron_sspo.rehearsal.sizes import KNOWN, SizesFolder, find_config
from megatron_sspo.run import Model, Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Sampling
from megatron_sspo.weights.family import load_family
from tests.forking import run_python


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "megatron_sspo", "launch", *arguments, folder=Path(__file__).parents[2], timeout=300)


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
def test_ranks_end_with_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "megatron_sspo", "launch", "examples/tiny_moe.py", "--rehearse"]
    command += ["--output", str(tmp_path / "rehearsal.json")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "rank 0: build" in process.stderr.readline()
        process.kill()
        assert "rank 0: checkpoint" not in process.stderr.read()  # it ends when the rank has ended, too


@pytest.mark.parametrize(
    "options, message",
    [
        (["--rehearse", "--machine", "cray"], "--machine is 'cray', and the machines known here are a100x8"),
        (["--rehearse", "--rank", "2"], "--rank is 2, and the layout has ranks 0 to 1"),
        (["--rehearse", "--stage", "2"], "--stage is 2, and the layout has stages 1 to 1"),
        (
            ["--rehearse", "--skew", "4", "--set", "parallel.data=1", "--set", "parallel.expert=1"],
            "--skew is 4, but with parallel.expert=1 all experts are on one rank: leave out --skew, or raise",
        ),
        (
            ["--rehearse", "--skew", "4", "--set", "parallel.expert=1", "--set", "model.path=Qwen3-8B"],
            "--skew is 4, but Qwen3-8B has no experts: leave out --skew",
        ),
        (["--rehearse", "--response-tokens", "9999"], "--response-tokens is 9999, and rollouts.sampling.max_tokens"),
        (
            ["--rehearse", "--output", "examples/tiny_moe.py/x"],
            "cannot use examples/tiny_moe.py: File exists; a file is where a folder has to be",
        ),
        (["--rehearse", "--on", "slurm"], "--rehearse starts no run and checks none"),
    ],
)
def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(["launch", "examples/tiny_moe.py", *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("path", sorted(KNOWN.glob("*.json")), ids=lambda path: path.stem)
def test_known_models_have_the_sizes_of_their_names(path: Path) -> None:
    config, source = find_config(f"models/{path.stem}")
    assert source == f"the sizes of {path.stem}"
    shapes = SizesFolder(config).shapes()
    count = sum(map(math.prod, shapes.values()))
    wanted = {"Qwen2.5-7B-Instruct": 7.62, "Qwen3-8B": 8.19, "Qwen3-14B": 14.77, "Qwen3-30B-A3B": 30.53}[path.stem]
    assert count / 1e9 == pytest.approx(wanted, abs=0.005)
    load_family(config)


def test_a_model_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the sizes of Other-7B are not known: put its config.json there"):
        find_config(str(tmp_path / "Other-7B"))


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


@pytest.mark.parametrize(
    "parallel, shape",
    [
        (Parallel(pipeline=2), (200, 1, 8)),
        (Parallel(pipeline=2, context=2), (100, 1, 8)),
        (Parallel(pipeline=2, tensor=2, sequence=True), (100, 1, 8)),
        (Parallel(pipeline=2, tensor=2), (200, 1, 8)),
    ],
)
def test_the_shape_that_a_stage_receives(parallel: Parallel, shape: tuple[int, ...]) -> None:
    run = run_of(parallel, 16)
    assert received_shape(run, workload(run), 8) == shape


def test_pipelines_are_filled() -> None:
    assert workload(run_of(Parallel(pipeline=4), 16)).rehearsed == 5
    interleaved = workload(run_of(Parallel(pipeline=4, virtual_pipeline=2), 16))
    assert interleaved.rehearsed % 4 == 0 and interleaved.rehearsed >= 9
