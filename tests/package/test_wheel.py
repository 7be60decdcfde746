"""The package that pip installs: built from the sources, and used in an empty folder without the checkout."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import torch

import megatron_sspo
from tests.rows import rows, sets

ROOT = Path(__file__).parents[2]
LIBRARIES = sorted((ROOT / "packages").iterdir())
FEW = sets("num_updates=2", "warm_start.updates=2", "rollouts.prompts_per_update=2")
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
    """Returns the wheel that `python -m build` makes from the sdist; twine has checked both.

    Beside it are the wheels of the libraries, and in src the files that they are made from.
    """
    folder = tmp_path_factory.mktemp("build")
    for name in sources():
        (folder / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():  # a file that is removed but not committed is still listed
            shutil.copyfile(ROOT / name, folder / "src" / name, follow_symlinks=False)
    run(folder, "-m", "build", "--no-isolation", "--outdir", str(folder), str(folder / "src"))
    [sdist], [built] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    for library in LIBRARIES:
        source = folder / "src" / "packages" / library.name
        run(folder, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(source))
    run(folder, "-m", "twine", "check", "--strict", str(sdist), str(built))
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    assert not [member for member in members if member.issym() or member.islnk()]
    assert not [name for name in names if name.startswith("packages")]
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run(
        folder, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile",
        "--disable-pip-version-check", "--target", str(folder), *map(str, wheel.parent.glob("*.whl")),
    )  # fmt: skip
    return folder


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def test_a_checkout_takes_its_own_libraries(wheel: Path, tmp_path: Path) -> None:
    """An index has no newer ones, or none."""
    source = wheel.parent / "src"
    run(
        tmp_path, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "--disable-pip-version-check", str(source),
    )  # fmt: skip
    [built] = tmp_path.glob("*.whl")
    trained = [line for line in metadata(built).get_all("Requires-Dist", []) if line.endswith('extra == "train"')]
    for library in LIBRARIES:
        place = (source / "packages" / library.name).resolve().as_uri()
        assert f'sspo-{library.name} @ {place} ; extra == "train"' in trained


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    about = metadata(wheel)
    here = {name for name in sources() if name.startswith("megatron_sspo/") and (ROOT / name).is_file()}
    model = "megatron_sspo/project/template/model"
    assert found == here | {f"{model}/{path.name}" for path in (ROOT / model).iterdir()}
    assert about["Version"] == megatron_sspo.__version__
    assert [line for line in about.get_all("Requires-Dist", []) if "extra ==" not in line] == ["torch>=2.6"]
    trained = {line for line in about.get_all("Requires-Dist", []) if line.endswith('extra == "train"')}
    assert {f'sspo-{path.name}==0.1.0; extra == "train"' for path in LIBRARIES} <= trained
    extras = {"train", "sglang-client", "trl", "verl", "tracking", "docs", "dev", "hub"}
    assert extras <= set(about.get_all("Provides-Extra", []))


def test_it_works_in_an_empty_folder_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    def command(*arguments: str, folder: Path = tmp_path / "mine") -> str:
        return run(folder, "-m", "megatron_sspo", *arguments, path=installed)

    where = "import megatron_sspo; print(megatron_sspo.__file__)"
    assert run(tmp_path, "-c", where, path=installed).startswith(str(installed))
    command("new", "mine", folder=tmp_path)
    command("train", "recipe.py", *FEW, "--profile", "2")
    run_folder = tmp_path / "mine" / "runs" / "reverse"
    assert (run_folder / "model" / "config.json").exists()
    assert [row["update"] for row in rows(run_folder / "metrics.jsonl")] == [1, 2]
    assert {"held_out/pass@1", "held_out/digits"} <= set(rows(run_folder / "evaluations.jsonl")[-1])
    assert [path.name for path in (run_folder / "profile").iterdir()] == ["updates-2-2-rank-0.json.gz"]
    (run_folder / "curves.png").unlink()
    command("plot", "runs/reverse")
    assert (run_folder / "curves.png").exists()
    printed = command("launch", "recipe.py", "--on", "slurm", "--dry-run", "--set", "name=other")
    assert (
        f"cd {tmp_path / 'mine'}\n" in printed and "\nsbatch slurm/train.sbatch recipe.py --set name=other\n" in printed
    )
    for script in ("slurm/train.sbatch", "slurm/train.sh", "slurm/job.sh"):
        subprocess.run(["bash", "-n", script], cwd=tmp_path / "mine", check=True)
    settings = sorted(path.name for path in (tmp_path / "mine" / "paper").iterdir())
    assert len(settings) == 8
    loaded = (
        "from megatron_sspo.recipe import load_recipe; import sys; print(*(load_recipe(p).name for p in sys.argv[1:]))"
    )
    names = run(tmp_path / "mine", "-c", loaded, *(f"paper/{name}" for name in settings), path=installed)
    assert names.split() == [Path(name).stem for name in settings]


RECIPE = """
from megatron_sspo.objective import AtanLog, Pessimistic, Segments, sspo
from megatron_sspo.run import Model, Prompts, Run

def recipe() -> Run:
    gate = Pessimistic(AtanLog(tau_neg=0.3, tau_pos=0.2))
    return Run(name="mine", model=Model(path="model"), prompts=Prompts(source="a"), objective=sspo(gate), num_updates=1)

lengths: int = Segments.from_lengths([1, 2]).lengths
"""


def test_its_type_hints_are_known_outside(installed: Path, tmp_path: Path) -> None:
    """Pyright finds the one wrong hint of a recipe, so it reads the installed package's own."""
    (tmp_path / "recipe.py").write_text(RECIPE)
    settings = {"extraPaths": [str(installed)], "include": ["recipe.py"], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [one["rule"] for one in found] == ["reportAssignmentType"], found
    assert '"Tensor" is not assignable to' in found[0]["message"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_pip_installs_it_on_a_fresh_machine(wheel: Path, tmp_path: Path) -> None:
    """Installs from the package index: the wheel alone, which computes an objective, and then what training needs."""
    run(tmp_path, "-m", "venv", "fresh")
    python = tmp_path / "fresh" / "bin" / "python"
    pinned = tmp_path / "constraints.txt"  # another release of torch would be a download of gigabytes
    pinned.write_text(f"torch=={torch.__version__.partition('+')[0]}")

    def fresh(*arguments: str, folder: Path = tmp_path) -> str:
        done = subprocess.run([python, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(what: str) -> None:
        quiet = ("--quiet", "--disable-pip-version-check")
        fresh("-m", "pip", "install", *quiet, "-c", str(pinned), "--find-links", str(wheel.parent), what)

    install(str(wheel))
    program = (
        "import torch; from megatron_sspo.objective import Segments, sspo; "
        "print(float(sspo()(torch.zeros(3), torch.zeros(3), torch.ones(2), Segments.from_lengths([1, 2])).loss))"
    )
    assert fresh("-c", program).strip() == "-2.0"
    install(f"{wheel}[train]")
    fresh("-m", "megatron_sspo", "new", "mine")
    fresh("-m", "megatron_sspo", "train", "recipe.py", *FEW, folder=tmp_path / "mine")
    fresh("-m", "megatron_sspo", "plot", "runs/reverse", folder=tmp_path / "mine")
