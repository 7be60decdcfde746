"""Reactions of slurm/job.sh to the output of Slurm's commands; tests/cluster runs the whole script."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, script: str, **commands: str) -> "subprocess.CompletedProcess[str]":
    """Runs a script that sources job.sh, with these stand-ins for Slurm's commands and without pauses."""
    for name, body in {"squeue": "", "srun": "", "scontrol": "", **commands}.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "job",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_SUBMIT_DIR": str(folder),
    }
    program = f". {ROOT}/slurm/job.sh; pause() {{ ((SECONDS += 10)); }}; {script}"
    return subprocess.run(
        ["bash", "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("scontrol", "expected"),
    [
        ("exit 1", "goes on"),
        ("echo x >> asked; (($(wc -l < asked) > 4)) && echo JobState=RUNNING", "goes on"),
        ("echo x >> asked; (($(wc -l < asked) > 4)) && echo JobState=COMPLETING", "ended"),
        ("echo JobState=RUNNING", "goes on"),
        ("echo JobState=COMPLETING", "ended"),
        ("echo JobState=CANCELLED", "ended"),
    ],
)
def test_only_slurm_can_say_that_it_has_ended_the_job(tmp_path, scontrol, expected) -> None:
    done = run(tmp_path, "look_whether_ended; [[ $ended ]] && echo ended || echo goes on", scontrol=scontrol)
    assert done.stdout.splitlines()[-1] == expected, done.stderr


def test_a_node_that_does_not_answer_is_left_to_slurm(tmp_path) -> None:
    says = 'if [[ $2 == config ]]; then echo "SlurmdTimeout = 100 sec"; else echo JobState=$(cat state); fi'
    (tmp_path / "state").write_text("RUNNING")
    step = "look_after_nodes; echo it is over"

    answered = run(tmp_path, step, scontrol=says)
    assert answered.stdout == "it is over\n" and answered.returncode == 0

    waited = run(tmp_path, f"start=$SECONDS; {step}; echo $((SECONDS - start))", scontrol=says, srun="exit 1")
    found, over, seconds = waited.stdout.splitlines()
    assert found.endswith("a node does not answer: Slurm is to find that within 100 s, and to queue the job again")
    assert over == "it is over" and 220 <= int(seconds) <= 240

    ends = "pause() { ((SECONDS += 10)); echo COMPLETING > state; kill -TERM $$; }"
    ended = run(tmp_path, f"{ends}; {step}", scontrol=says, srun="exit 1")
    assert "the job ends: Slurm has ended it" in ended.stdout and ended.returncode == 1
