"""Experiments by the real NeMo-Run, in its own environment; tests on a cluster are in tests/cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_sspo.launch.slurm import VARIABLES
from tests.e2e.conftest import _make
from tests.rows import rows, sets

pytestmark = pytest.mark.nemo_run

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("NEMO_RUN_PYTHON", Path(sys.prefix).parent / ".venv-nemo-run" / "bin" / "python"))


def environment(home: Path, **more: str) -> dict[str, str]:
    assert PYTHON.exists(), "NeMo-Run is not there: make install-nemo-run"
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    ours = {"NEMORUN_HOME": str(home), "NEMO_RUN_PYTHON": str(PYTHON), "PYTHONPATH": str(ROOT), "COLUMNS": "1000"}
    return {**inherited, **ours, **more}


def call(*command: object, timeout: float = 240, **variables: str) -> "subprocess.CompletedProcess[str]":
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=timeout, check=False)


def sbatch_script(printed: str, home: Path) -> str:
    """Returns the script in the output of a dry run, without margins and without parts that change between runs."""
    lines = [re.sub(r"\s+\w+\.py:\d+$", "", line.rstrip()).strip() for line in printed.splitlines()]
    text = "\n".join(lines[lines.index("#!/bin/bash") :]).rstrip() + "\n"
    text = text.replace(str(home), "NEMORUN_HOME").replace(str(ROOT), "PROJECT")
    return re.sub(r"_\d{19}", "_ID", text)


def test_the_papers_largest_setting(tmp_path) -> None:
    """The script equals qwen3_30b_a3b.sbatch, which a person has reviewed; review it again after a change."""
    program = ROOT / "examples" / "nemo_run_qwen3_30b_a3b.py"
    chosen = {"CONTAINER": "trainer.sqsh", "SERVER_CONTAINER": "sglang.sqsh"}
    done = call(
        *(PYTHON, program, "--account=research", "--partition=h100", "--dry-run"), **environment(tmp_path, **chosen)
    )
    assert done.returncode == 0, done.stderr
    expected = Path(__file__).with_name("qwen3_30b_a3b.sbatch").read_text()
    assert sbatch_script(done.stdout, tmp_path) == expected
    stale = call(*(PYTHON, program, "--account=a", "--partition=b", "--stale", "--dry-run"), **environment(tmp_path))
    assert "train_qwen3_30b_a3b.sbatch examples/qwen3_30b_a3b_math.py:stale" in stale.stdout, stale.stderr


def test_what_is_wrong_is_one_sentence(tmp_path) -> None:
    """The example runs the checks of `megatron-sspo launch` with the trainer's interpreter."""
    program = ROOT / "examples" / "nemo_run_qwen3_30b_a3b.py"
    done = call(
        *(PYTHON, program, "--account=a", "--partition=b"), **environment(tmp_path, PYTHON=sys.executable)
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("megatron-sspo: models/Qwen3-30B-A3B has no config.json")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return _make(tmp_path_factory.mktemp("experiment"))


def start(workshop, name: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    recipe = f"{workshop.recipe}:bare"
    given = sets("num_updates=2", f"name={name}", "parallel.data=2", "parallel.expert=2")
    where = ("--on", "nemo-run", "--executor", "local")
    command = (sys.executable, "-m", "megatron_sspo", "launch", recipe, *given, *where)
    return call(*command, **environment(workshop.folder / "nemo", **variables))


def test_an_experiment_on_this_machine(workshop) -> None:
    done = start(workshop, "first")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().splitlines()[-1].endswith(": SUCCEEDED")
    assert (
        len(rows(workshop.folder / "first" / "metrics.jsonl")) == 2 and (workshop.folder / "first" / "model").is_dir()
    )


def test_a_failing_experiment_has_an_exit_code(workshop) -> None:
    """NeMo-Run's own exit code would be 0. The trainer fails; the checks use the interpreter that starts it."""
    done = start(workshop, "second", PYTHON="/bin/false")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.strip().splitlines()[-1].endswith(": FAILED")


def test_what_nemo_run_would_do_otherwise_is_refused(tmp_path) -> None:
    program = """
import nemo_run as run
from megatron_sspo.errors import UserError
from megatron_sspo.launch.nemo_run import InBatchShell, launch, check_executor, slurm_executor
from megatron_sspo.launch.slurm import SlurmJob

job = SlurmJob(recipe="examples/qwen3_8b_math.py", options=["--nodes=4", "--comment=x y", "--nice=5"])
executor = slurm_executor(job, account="research")
assert (executor.nodes, executor.comment, executor.time, executor.exclusive) == (4, "x y", "04:00:00", True)
named = slurm_executor(SlurmJob(recipe="examples/qwen3_8b_math.py", options=["--partition=007", "--mem=0"]))
assert (named.partition, named.mem) == ("007", "0")
assert executor.additional_parameters == {"nice": "5"}, executor.additional_parameters
InBatchShell(project="/p", environment={"RUN": "a b"}).setup(run.Script(inline="true"), executor)
assert executor.signal == "B:USR1@600" and "export RUN='a b'" in executor.setup_lines
InBatchShell(project="/p").setup(run.Script(inline="true"), run.LocalExecutor())
refused = {
    "heterogeneous": {"heterogeneous": True},
    "containers are given by CONTAINER": {"container_image": "x.sqsh"},
    "in capitals and without quotes": {"env_vars": {"a": "b c"}},
    "array": {"array": "0-3"},
    "tunnel.job_dir": {"tunnel": run.LocalTunnel(job_dir="/elsewhere")},
}
for message, fields in refused.items():
    try:
        launch(job, slurm_executor(job, **fields), dry_run=True)
    except UserError as error:
        assert message in str(error), error
    else:
        raise SystemExit(f"not refused: {fields}")
"""
    done = call(PYTHON, "-c", program, **environment(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
