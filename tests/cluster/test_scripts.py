"""The scripts with a single task, and rules for all scripts."""

import re
import subprocess

from megatron_sspo.project.new import TEMPLATE
from tests.cluster.slurm import HERE, ROOT
from tests.rows import rows

SCRIPTS = [*sorted((ROOT / "slurm").glob("*.s*")), *sorted(HERE.glob("*.sh")), TEMPLATE / "slurm" / "train.sbatch"]


def test_convert_and_evaluate(trained, workplace) -> None:
    converting = workplace.submit(
        "convert.sbatch", str(trained.run / "model"), str(workplace.folder / "converted"), "--dtype", "bfloat16",
        options=("--cpus-per-task=2",),
    )  # fmt: skip
    assert converting.end() == "COMPLETED", converting.logs()
    assert "a Megatron checkpoint of" in converting.log()
    assert (workplace.folder / "converted" / "metadata.json").exists()

    output = workplace.folder / "evaluation"
    arguments = ("--recipe", f"{workplace.recipe}:embedded", "--samples", "2", "--output", str(output))
    evaluating = workplace.submit("evaluate.sbatch", str(trained.run / "model"), *arguments)
    assert evaluating.end() == "COMPLETED", evaluating.logs()
    assert len(rows(output / "additions" / "greedy.jsonl")) == 8
    assert "reward" in evaluating.log()


def test_what_is_missing_is_said_in_the_last_line(workplace) -> None:
    for script in ("convert.sbatch", "evaluate.sbatch", "serve.sbatch", "train.sbatch"):
        job = workplace.submit(script)
        assert job.end() == "FAILED"
        assert re.search(rf"the job ends: no .*: sbatch slurm/{script} ", job.last_line()), job.log()


def test_shellcheck() -> None:
    done = subprocess.run(["shellcheck", "--external-sources", *SCRIPTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
