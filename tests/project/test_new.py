"""`megatron-sspo new`: the files of a project, and what runs in it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.launch.slurm import VARIABLES
from megatron_sspo.project.new import TEMPLATE


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "here" / "mine"
    assert main(["new", str(folder)]) == 0
    return folder


def test_it_is_whole_and_has_no_links(project: Path) -> None:
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    of_template = {str(path.relative_to(TEMPLATE)) for path in TEMPLATE.rglob("*") if path.is_file()}
    of_template |= {f"model/{path.name}" for path in (TEMPLATE / "model").iterdir()}
    of_template = {name for name in of_template if "__pycache__" not in name and not name.endswith(".jsonl")}
    assert files == of_template | {"train.jsonl", "held_out.jsonl"}
    assert not [path for path in project.rglob("*") if path.is_symlink()]
    assert [path.name for path in project.parent.iterdir()] == ["mine"], "nothing temporary stays"


def test_the_papers_recipes_name_the_place_where_they_are(project: Path) -> None:
    for path in sorted((project / "paper").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert f"megatron-sspo train paper/{path.name}" in text and " examples/" not in text
        assert text.count("docs/") == text.count(".md of megatron_sspo") > 0


def test_what_exists_is_not_overwritten(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(project.rglob("*"))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for folder in (project, tmp_path / "link", tmp_path / "empty"):
        assert main(["new", str(folder)]) == 2
        assert f"{folder} exists already: name a new folder" in capsys.readouterr().err
    assert sorted(project.rglob("*")) == before


def test_a_folder_below_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for name in ("file/mine", "file/a/mine"):
        assert main(["new", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert f"cannot use {tmp_path}/file" in error and "a file is where a folder has to be: name another" in error


def test_the_command_that_it_prints_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("-dash", "a b", "it's", "$HOME"):
        assert main(["new", "--", folder]) == 0
        command = capsys.readouterr().out.replace("megatron-sspo train recipe.py", "pwd")
        printed = subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout
        assert printed == f"{tmp_path / folder}\n"


def test_a_package_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = tmp_path / "template"
    shutil.copytree(TEMPLATE, template)
    for path in (template, *template.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr("megatron_sspo.project.new.TEMPLATE", template)
    assert main(["new", str(tmp_path / "mine")]) == 0
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "mine").rglob("*"))
    for path in (template, *template.rglob("*")):
        path.chmod(0o755)


def test_the_recipes_that_a_script_names_exist(project: Path) -> None:
    text = (project / "slurm" / "train_qwen3_30b_a3b.sbatch").read_text(encoding="utf-8")
    named = re.findall(r"\b\w+/qwen3_30b_a3b_\w+\.py\b", text)
    assert len(named) == 2 and all((project / path).is_file() for path in named)


def test_slurm_takes_the_scripts_of_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is of one process, and has the interpreter of this command, because the project has no .venv."""
    monkeypatch.chdir(project)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert main(["launch", "recipe.py", "--on", "slurm", "--dry-run"]) == 0
    lines = (
        f"cd {project}\nexport PROJECT={project}\nexport PYTHON={sys.executable}\nsbatch slurm/train.sbatch recipe.py\n"
    )
    out = capsys.readouterr().out
    assert lines in out and out.endswith((project / "slurm" / "train.sbatch").read_text(encoding="utf-8"))
    (project / ".venv" / "bin").mkdir(parents=True)
    os.symlink(sys.executable, project / ".venv" / "bin" / "python")
    assert main(["launch", "recipe.py", "--on", "slurm", "--dry-run"]) == 0
    assert "PYTHON" not in capsys.readouterr().out.partition("sbatch")[0]
