"""Reactions of slurm/job.sh to the output of Slurm's commands; tests/cluster runs the whole script."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(
    folder: Path, script: str, variables: dict[str, str] | None = None, **commands: str
) -> "subprocess.CompletedProcess[str]":
    """Runs a script that sources job.sh, with these stand-ins for Slurm's commands and without pauses."""
    for name, body in {"squeue": "", "srun": "", "scontrol": "", **commands}.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "job",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_CPUS_PER_NODE": "16(x2),4",
        "SLURM_SUBMIT_DIR": str(folder),
        "PROJECT": str(folder),
        **(variables or {}),
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
        ("echo JobState=RUNNING; echo JobState=RUNNING", "goes on"),  # a heterogeneous job has a line for each part
    ],
)
def test_only_slurm_can_say_that_it_has_ended_the_job(tmp_path, scontrol, expected) -> None:
    done = run(tmp_path, "check_if_ended_by_slurm; [[ $ended ]] && echo ended || echo goes on", scontrol=scontrol)
    assert done.stdout.splitlines()[-1] == expected, done.stderr


def test_a_node_that_does_not_answer_is_left_to_slurm(tmp_path) -> None:
    says = 'if [[ $2 == config ]]; then echo "SlurmdTimeout = 100 sec"; else echo JobState=$(cat state); fi'
    (tmp_path / "state").write_text("RUNNING")
    step = "wait_for_lost_node; echo it is over"

    answered = run(tmp_path, step, scontrol=says)
    assert answered.stdout == "it is over\n" and answered.returncode == 0

    waited = run(tmp_path, f"start=$SECONDS; {step}; echo $((SECONDS - start))", scontrol=says, srun="exit 1")
    found, over, seconds = waited.stdout.splitlines()
    assert found.endswith("a node does not answer: waiting up to 100 s for Slurm to detect it and requeue the job")
    assert over == "it is over" and 220 <= int(seconds) <= 240

    ends = "pause() { ((SECONDS += 10)); echo COMPLETING > state; kill -TERM $$; }"
    ended = run(tmp_path, f"{ends}; {step}", scontrol=says, srun="exit 1")
    assert "the job ends: ended by Slurm" in ended.stdout and ended.returncode == 1


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ("127.0.1.1       STREAM n1", "", "eth1"),
        ("::1             STREAM n1", "", "eth1"),
        ("", "", "eth1"),
        ("127.0.1.1       STREAM n1", "ib0", "ib0"),
        ("10.0.0.7        STREAM n1", "", ""),
    ],
)
def test_gloo_does_not_listen_at_a_loopback_address(tmp_path, own, given, expected) -> None:
    """Ranks on other nodes could not reach it there. Gloo takes the address of the host's own name."""
    commands = {
        "scontrol": "echo n1",
        "srun": 'while [[ $1 == --* ]]; do shift; done; SLURMD_NODENAME=n1 exec "$@"',
        "hostname": "echo n1",
        "getent": f'if [[ $1 == ahosts ]]; then echo "{own}"; else echo "10.0.0.7 STREAM n1"; fi',
        "ip": 'echo "1: lo    inet 127.0.0.1/8 scope host lo"; echo "2: eth1    inet 10.0.0.7/24 scope global eth1"',
    }
    step = "SLURMD_NODENAME=n1 bash -c \"$use_gloo_interface\"'; echo =${GLOO_SOCKET_IFNAME:-}'"
    script = f'export GLOO_SOCKET_IFNAME={given}; begin; echo "${{address_of[n1]}}"; {step}'
    done = run(tmp_path, script, **commands)
    assert done.stdout.splitlines()[1:] == ["10.0.0.7", f"={expected}"], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "expected"), [("runs/x", "{}/runs/x"), ("../x", "{}/../x"), ("/s/r", "/s/r"), ("", "{}/runs/job-7")]
)
def test_a_relative_folder_is_one_of_the_folder_of_sbatch(tmp_path, given, expected) -> None:
    done = run(tmp_path, 'echo "$RUN"; echo "$PROJECT"', {"RUN": given, "PROJECT": "."})
    assert done.stdout.splitlines() == [os.path.normpath(expected.format(tmp_path)), str(tmp_path)], done.stderr


def test_a_percent_sign_in_a_folder_is_no_pattern_of_srun(tmp_path) -> None:
    done = run(tmp_path, 'step server "" 1 n1 true', {"RUN": "a%j"}, srun='printf "%s\n" "$@"')
    assert f"--output={tmp_path}/a%%j/slurm/7-0/server-%N.log" in done.stdout.splitlines(), done.stderr


def test_a_conversion_leaves_nothing_among_the_runs(tmp_path) -> None:
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")
    says = "if [[ $1 == show ]]; then echo n1; fi"
    answers = 'if [[ $* == *" _ "* ]]; then echo n1 address 10.0.0.7; fi'
    done = run(tmp_path, f"unset RUN; . {ROOT}/slurm/convert.sbatch from to", scontrol=says, srun=answers)
    assert done.stdout.endswith(f"done: {tmp_path}/logs/job-7/slurm/7-0\n"), done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["", "", "{}/.venv/bin/python", "{}/.venv-sglang/bin/python"]),
        ({"CONTAINER": "a.sqsh"}, ["{}/a.sqsh", "{}/a.sqsh", "python3", "python3"]),
        ({"CONTAINER": "nvcr.io#nvidia/pytorch:24.01"}, [*["nvcr.io#nvidia/pytorch:24.01"] * 2, "python3", "python3"]),
        ({"SERVER_CONTAINER": "./a.sqsh", "PYTHON": "/p"}, ["", "{}/a.sqsh", "/p", "python3"]),
    ],
)
def test_images_and_their_interpreters(tmp_path, variables, expected) -> None:
    """pyxis takes for a file only what begins with / or a dot."""
    (tmp_path / "a.sqsh").touch()
    shown = 'printf "%s\\n" "$CONTAINER" "$SERVER_CONTAINER" "$PYTHON" "$SERVER_PYTHON"'
    assert run(tmp_path, shown, variables).stdout.splitlines() == [one.format(tmp_path) for one in expected]


@pytest.mark.parametrize("value", ["-1", "08", "2x", "", " 1", "9" * 20, "a[$(touch x)]"])
def test_a_size_is_a_whole_number(tmp_path, value) -> None:
    done = run(tmp_path, "check_numbers SERVER_NODES; echo goes on", {"SERVER_NODES": value})
    assert done.stdout.endswith(
        f"the job ends: SERVER_NODES is '{value}': write a whole number, such as SERVER_NODES=1\n"
    )
    assert done.returncode == 1 and not (tmp_path / "x").exists()


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "slurm").glob("*.sbatch")))
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, ". has no slurm/job.sh: submit this script from the folder that has slurm/, or set PROJECT"),
        ({"SLURM_SUBMIT_DIR": "/none"}, "/none has no slurm/job.sh: submit this script from the folder that has"),
        ({"PROJECT": str(ROOT)}, "SLURM_JOB_ID is not set: submit this script with sbatch"),
    ],
)
def test_a_script_that_sbatch_has_not_started_or_from_elsewhere(tmp_path, script, variables, message) -> None:
    (tmp_path / "array").mkdir()
    (tmp_path / "array" / "1").write_bytes(b"run\0")
    done = subprocess.run(
        ["bash", ROOT / "slurm" / script, tmp_path, "1"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(message)


@pytest.mark.parametrize(
    ("nodes", "recipe", "found"),
    [
        ("3", "", "1 2 8  examples/qwen3_30b_a3b_math.py --set rollouts.options.server.tp_size=4"),
        ("1", "", "0 0 8 14 examples/qwen3_30b_a3b_one_node.py --set num_updates=3"),
        ("1", "mine.py", "0 0 8 14 mine.py --set num_updates=3"),
    ],
)
def test_on_one_node_the_trainer_starts_the_servers(tmp_path, nodes, recipe, found) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "job.sh").touch()
    shown = 'echo "$SERVER_NODES $SERVERS_PER_NODE $RANKS_PER_NODE ${OMP_NUM_THREADS:-} $*"'
    (tmp_path / "slurm" / "train.sh").write_text(shown)
    job = {"SLURM_JOB_NUM_NODES": nodes, "SLURM_CPUS_ON_NODE": "224", "PROJECT": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = ["bash", ROOT / "slurm" / "train_qwen3_30b_a3b.sbatch", *filter(None, [recipe]), "--set", "num_updates=3"]
    done = subprocess.run(command, env=job, capture_output=True, text=True)
    assert done.stdout.startswith(found) and done.stdout.endswith("--set num_updates=3\n"), done.stderr
