"""The package that pip installs: built from the sources, and used in an empty folder without the checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import megatron_sspo

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
pytestmark = pytest.mark.slow


def run(folder: Path, *arguments: str, path: Path | None = None) -> str:
    """Runs Python in a folder, with one folder on its path, and returns what it prints."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = kept | quiet | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources() -> list[str]:
    """Returns the paths of the repository's files."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a wheel that is built from the sdist, as `python -m build` does."""
    folder = tmp_path_factory.mktemp("build")
    for name in sources():
        (folder / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():  # a file that is removed but not committed is still listed
            shutil.copyfile(ROOT / name, folder / "src" / name, follow_symlinks=False)
    run(folder / "src", "-c", BUILD, "build_sdist", str(folder))
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= {path.name for path in unpacked.iterdir()}
    assert not [path for path in unpacked.rglob("*") if path.is_symlink()]
    run(unpacked, "-c", BUILD, "build_wheel", str(folder))
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run(
        folder, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile",
        "--disable-pip-version-check", "--target", str(folder), str(wheel),
    )  # fmt: skip
    return folder


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        about = Parser().parsestr(archive.read(metadata).decode("utf-8"))
    here = {name for name in sources() if name.startswith("megatron_sspo/") and (ROOT / name).is_file()}
    model = "megatron_sspo/project/template/model"
    assert found == here | {f"{model}/{path.name}" for path in (ROOT / model).iterdir()}
    assert about["Version"] == megatron_sspo.__version__
    assert [line for line in about.get_all("Requires-Dist", []) if "extra ==" not in line] == ["torch>=2.6"]
    extras = {"train", "sglang-client", "trl", "verl", "tracking", "docs", "dev", "hub"}
    assert extras <= set(about.get_all("Provides-Extra", []))


def test_it_works_in_an_empty_folder_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    def command(*arguments: str, folder: Path = tmp_path / "mine") -> str:
        return run(folder, "-m", "megatron_sspo", *arguments, path=installed)

    where = "import megatron_sspo; print(megatron_sspo.__file__)"
    assert run(tmp_path, "-c", where, path=installed).startswith(str(installed))
    command("new", "mine", folder=tmp_path)
    few = ["num_updates=2", "warm_start.updates=2", "rollouts.prompts_per_update=2", "evaluation=None"]
    command("train", "recipe.py", *(word for value in few for word in ("--set", value)))
    run_folder = tmp_path / "mine" / "runs" / "reverse"
    assert (run_folder / "model" / "config.json").exists()
    assert len((run_folder / "metrics.jsonl").read_text().splitlines()) == 2
    (run_folder / "curves.png").unlink()
    command("plot", "runs/reverse")
    assert (run_folder / "curves.png").exists()
    printed = command("launch", "recipe.py", "--on", "slurm", "--dry-run", "--set", "name=other")
    assert (
        f"cd {tmp_path / 'mine'}\n" in printed and "\nsbatch slurm/train.sbatch recipe.py --set name=other\n" in printed
    )
    for script in ("slurm/train.sbatch", "slurm/train.sh", "slurm/job.sh"):
        subprocess.run(["bash", "-n", script], cwd=tmp_path / "mine", check=True)
