"""`megatron-sspo launch`: its output and its errors."""

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.errors import UserError
from megatron_sspo.launch.slurm import (
    VARIABLES,
    SlurmJob,
    check_size,
    project_folder,
    split_options,
    variables_from_environment,
)
from tests.weights.test_families import QWEN3_30B_A3B

ROOT = Path(__file__).parents[2]
RECIPE = "examples/tiny_moe.py"
PAPER = "slurm/train_qwen3_30b_a3b.sbatch"


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def arguments(tmp_path, *more):
    """Returns arguments for a run whose folder does not exist."""
    return ["launch", RECIPE, "--set", f"output={tmp_path}", *more]


def test_check_prints_what_each_rank_needs(tmp_path, capsys) -> None:
    assert main(arguments(tmp_path, "--check")) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("tiny_moe: 2 ranks (data 2, expert 2), 8192 tokens a microbatch")
    assert out[1].split()[:5] == ["GB", "a", "rank", "weights", "gradients"]
    assert out[-1].startswith("all checks passed")
    assert not (tmp_path / "tiny_moe").exists()


@pytest.mark.parametrize("field", ["reward", "evaluation.sets.additions.reward", "rollouts.agent"])
def test_check_builds_the_parts_of_ones_own(tmp_path, capsys, field) -> None:
    file = tmp_path / "parts.py"
    file.write_text("def part():\n    return object()\n")
    assert main(arguments(tmp_path, "--check", "--set", f"{field}={file}:part")) == 2
    error = capsys.readouterr().err
    assert f"{file}:part' " in error and " has no " in error and error.count("\n") == 1


def test_check_refuses_what_does_not_fit(tmp_path, capsys) -> None:
    assert main(arguments(tmp_path, "--check", "--memory", "0.2")) == 2
    error = capsys.readouterr().err
    assert "GB, but a GPU there has 0.2 GB; most of it" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on=slurm"], "3 nodes, 1 of them for servers, with 8 ranks on each of the others, but the layout needs 2"),
        (["--on=slurm", "--sbatch=--comment='x"], '--sbatch is "--comment=\'x", which a shell cannot read'),
        (["--on=slurm", "--sbatch=--nodes 3"], "--sbatch has '3', which is not an option of the form --name=value"),
        (["--on=slurm", "--script=slurm/none.sbatch"], "has no slurm/none.sbatch: start from a project of `megatron"),
        (["--on=slurm", "--resume=runs/x"], "--resume is for --on local: set RUN"),
        (["--sbatch=--nodes=3"], "--sbatch and --script are for Slurm jobs"),
        (["--executor=local"], "--executor is NeMo-Run's"),
        (["--on=nemo-run", "--executor=local"], "make install-nemo-run"),
        (["--rehearse"], "--rehearse starts no run and checks none"),
        (["--set=output=/dev/null/x"], "cannot write into /dev/null/x/tiny_moe: /dev/null is not a folder; choose"),
    ],
)
def test_an_option_that_is_wrong(tmp_path, monkeypatch, capsys, options, message) -> None:
    monkeypatch.setenv("NEMO_RUN_PYTHON", str(tmp_path / "none"))
    assert main([*arguments(tmp_path, "--dry-run"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_dry_run_here(tmp_path, capsys) -> None:
    assert main(arguments(tmp_path, "--dry-run")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        words = shlex.split(line)
        assert words[0] == "env" and {f"RANK={rank}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1"} <= set(words)
        assert words[words.index("-m") :] == ["-m", "megatron_sspo", "train", RECIPE, "--set", f"output={tmp_path}"]


def test_dry_run_by_slurm(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("RUN", str(tmp_path / "a run"))
    monkeypatch.setenv("RANKS_PER_NODE", "1")
    more = ["--on", "slurm", "--dry-run", "--sbatch=--nodes=3 --comment='two words'"]
    assert main(["launch", RECIPE, "--set", "seed=3", *more]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"cd {ROOT}\n"
        f"export PROJECT={ROOT}\n"
        "export RANKS_PER_NODE=1\n"
        f"export RUN='{tmp_path}/a run'\n"
        f"sbatch --nodes=3 '--comment=two words' slurm/train.sbatch {RECIPE} --set seed=3\n"
    )
    assert out.endswith((ROOT / "slurm" / "train.sbatch").read_text())


@pytest.mark.parametrize(("image", "python"), [("", sys.executable), ("trainer.sif", "")])
def test_nemo_run_gets_no_interpreter_of_this_machine_for_a_container(
    monkeypatch, capfd, tmp_path, image, python
) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\necho "PYTHON=$PYTHON"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("NEMO_RUN_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("RANKS_PER_NODE", "1")
    monkeypatch.setenv("CONTAINER", image)
    assert main(arguments(tmp_path, "--on", "nemo-run", "--dry-run")) == 0
    assert f"PYTHON={python}\n" in capfd.readouterr().out


def test_a_folder_of_a_model_is_no_folder_of_a_run(tmp_path, capsys) -> None:
    (tmp_path / "tiny_moe").mkdir()
    (tmp_path / "tiny_moe" / "config.json").write_text('{"model_type": "qwen3"}')
    assert main(arguments(tmp_path, "--check")) == 2
    assert (
        "tiny_moe already contains a model, which a new run would replace: choose another folder"
        in capsys.readouterr().err
    )
    assert main(arguments(tmp_path, "--check", "--resume", str(tmp_path / "tiny_moe"))) == 2
    assert "tiny_moe is not the folder of a run: name the folder" in capsys.readouterr().err


def test_a_run_folder_that_holds_a_run_is_gone_on_with(tmp_path, monkeypatch, capsys) -> None:
    """The script resumes it too. Here it is an error, and without RUN a job makes a folder of its own."""
    (tmp_path / "tiny_moe").mkdir()
    (tmp_path / "tiny_moe" / "config.json").write_text("{}")
    assert main(arguments(tmp_path, "--check")) == 2
    assert "already contains a run" in capsys.readouterr().err
    monkeypatch.setenv("RANKS_PER_NODE", "1")
    assert main(arguments(tmp_path, "--on", "slurm", "--check")) == 0
    monkeypatch.setenv("RUN", str(tmp_path / "tiny_moe"))
    assert main(["launch", RECIPE, "--on", "slurm", "--check"]) == 0


def test_the_variables_are_those_of_the_readme() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "slurm" / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(VARIABLES)


def test_what_a_script_sets_is_known() -> None:
    job = SlurmJob(recipe=RECIPE, script=PAPER, options=split_options("--nodes=5 --time=1:00:00"))
    found = job.all_options()
    assert (found["nodes"], found["gpus-per-node"], found["exclusive"]) == ("5", "8", "")
    assert (job.variable("SERVER_NODES"), job.variable("RANKS_PER_NODE")) == ("1", "8")
    assert "rollouts.options.server.tp_size=4" in job.script_assignments()
    check_size(job, {32})
    assert SlurmJob(recipe=RECIPE).variable("RANKS_PER_NODE") == ""  # as many as a node has GPUs


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("#SBATCH --nodes=2 # two\n#SBATCH\t--mem=0\n\n# more\n#SBATCH --x11\n", {"nodes": "2", "mem": "0", "x11": ""}),
        ("#SBATCH --nodes=2\ntrue\n#SBATCH --nodes=3\n", {"nodes": "2"}),
        ("##SBATCH --nodes=2\n# SBATCH --nodes=3\n", {}),
        ("#SBATCH -A mine\n", "slurm/own.sbatch has '-A', which is not an option of the form --name=value"),
    ],
)
def test_lines_of_options_are_read_as_sbatch_does_or_refused(tmp_path, lines, found) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "own.sbatch").write_text(f"#!/bin/bash\n{lines}")
    job = SlurmJob(recipe=RECIPE, script="slurm/own.sbatch", variables={"PROJECT": str(tmp_path)})
    if isinstance(found, dict):
        assert job.all_options() == found
    else:
        with pytest.raises(UserError, match=re.escape(found)):
            job.all_options()


def test_relative_folders_are_those_of_the_command(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine").symlink_to(ROOT)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer.sqsh").touch()
    images = {"CONTAINER": "trainer.sqsh", "SERVER_CONTAINER": "nvcr.io#nvidia/pytorch:24.01"}
    job = SlurmJob(recipe=RECIPE, variables={"PROJECT": "mine", "RUN": "runs/old", "SERVERS": "servers", **images})
    assert job.run_folder == tmp_path / "runs" / "old"
    assert job.environment == {
        **images,
        "CONTAINER": f"{tmp_path}/trainer.sqsh",
        "PROJECT": f"{tmp_path}/mine",
        "RUN": f"{tmp_path}/runs/old",
        "SERVERS": f"{tmp_path}/servers",
    }


def test_an_empty_variable_has_its_default_as_in_a_shell(tmp_path, monkeypatch) -> None:
    (tmp_path / "slurm").mkdir()
    for name in ("job.sh", "train.sbatch"):
        shutil.copy(ROOT / "slurm" / name, tmp_path / "slurm")
    empty = {str(name): "" for name in VARIABLES}
    given = SlurmJob(recipe=RECIPE, variables=empty | {"PROJECT": str(tmp_path)})
    assert given.environment == {"PROJECT": str(tmp_path), "PYTHON": sys.executable}
    sizes = SlurmJob(recipe=RECIPE, variables=empty | {"RANKS_PER_NODE": "1"}, options=["--nodes=3"])
    with pytest.raises(UserError, match="the job has 3 nodes, 1 of them for servers, with 1 ranks"):
        check_size(sizes, {64})
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    assert variables_from_environment() == {} and project_folder(empty) == project_folder({})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--gres=gpu:4", "with 4 ranks on each of the others"),
        ("--gres=gpu:h100:4,nvme:1", "with 4 ranks on each of the others"),
        ("--gpus-per-node=h100:4", "with 4 ranks on each of the others"),
        ("--gpus-per-node=4", "with 4 ranks on each of the others"),
        ("--gpus-per-node=8", ""),
        ("--gres=nvme:1", ""),
    ],
)
def test_gpus_in_each_way_of_slurm_are_compared_with_the_layout(tmp_path, options, message) -> None:
    """Three nodes, one of them for servers, and a layout of 16 ranks."""
    (tmp_path / "slurm").mkdir()
    text = (ROOT / "slurm" / "train.sbatch").read_text()
    (tmp_path / "slurm" / "train.sbatch").write_text(text)
    job = SlurmJob(recipe=RECIPE, variables={"PROJECT": str(tmp_path)}, options=split_options(options))
    if message:
        with pytest.raises(UserError, match=re.escape(message)):
            check_size(job, {16})
    else:
        check_size(job, {16})


def test_a_range_of_nodes_needs_a_layout_for_each_number() -> None:
    job = SlurmJob(recipe=RECIPE, script=PAPER, options=split_options("--nodes=3-5"))
    check_size(job, {16, 24, 32})
    with pytest.raises(UserError, match=r"the job may get 4 nodes, 1 of them .* needs 16 or 32 ranks"):
        check_size(job, {16, 32})


def test_the_table_of_the_readme_is_what_the_tool_prints() -> None:
    spec = importlib.util.spec_from_file_location("memory_table", ROOT / "tools" / "memory_table.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert f"\n{tool.table()}\n" in (ROOT / "slurm" / "README.md").read_text()
    published = {key: value for key, value in QWEN3_30B_A3B.items() if key in tool.MODELS["Qwen3-30B-A3B"]}
    assert published == tool.MODELS["Qwen3-30B-A3B"]
