"""The scripts with a single task, and rules for all scripts."""

import json
import re
import subprocess

from megatron_sspo.project.new import TEMPLATE
from tests.cluster.slurm import HERE, ROOT

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
    answers = (output / "additions" / "greedy.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in answers]) == 8
    assert "reward" in evaluating.log()


def test_what_is_missing_is_said_in_the_last_line(workplace) -> None:
    for script in ("convert.sbatch", "evaluate.sbatch", "serve.sbatch", "train.sbatch"):
        job = workplace.submit(script)
        assert job.end() == "FAILED"
        assert re.search(rf"the job ends: no .*: sbatch slurm/{script} ", job.last_line()), job.log()


def test_the_papers_setting_is_the_same_job_with_sizes(workplace) -> None:
    """The model does not exist here, so the job ends with the server's error about it."""
    job = workplace.submit("train_qwen3_30b_a3b.sbatch", options=("--nodes=3",), RANKS_PER_NODE=8)
    assert job.end() == "FAILED"
    assert "the job ends: the server ended with exit code 2" in job.last_line(), job.logs()
    assert "models/Qwen3-30B-A3B" in job.log()


def test_every_variable_of_the_readme_is_set_by_a_test() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "slurm" / "README.md").read_text(), re.MULTILINE)
    tests = "".join(path.read_text() for path in HERE.glob("*.py"))
    assert len(rows) >= 12
    assert not [name for name in rows if not re.search(rf'\b{name}=|"{name}":', tests)]


def test_shellcheck() -> None:
    done = subprocess.run(["shellcheck", "--external-sources", *SCRIPTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
