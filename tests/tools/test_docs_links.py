"""Links of the documentation, and files that it names."""

import re
import subprocess
from pathlib import Path

import pytest

from tools.docs_links import DeadLink, outside_targets, page_of, rewrite, source_page

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("docs/**/*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "slurm/README.md")),
]
GENERATED = {"configuration.md": ""}

# `name.py` or `folder/name.py`, maybe in a code span with other words: a file of the repository
FILE = re.compile(r"(?<![\w./*-])((?:[\w-]+/)*[\w-]+\.(?:py|sbatch|sh|md|svg|c))(?![\w/])")
# files of the reader, of a run and of other projects
NOT_OURS = re.compile(r"^(my_|mine|modeling|report\.md$|file\.py$|arguments\.py$|grpo_config\.py$)")
FOLDERS = ("", "megatron_sspo", "docs", "slurm", "tests", "examples", "tools")


def files() -> set[str]:
    """Returns the paths of the repository's files."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return set(done.stdout.splitlines())


def test_links_within_the_site_and_out_of_it() -> None:
    text = "[a](data.md) [b](../megatron_sspo/loop.py) [c](../README.md#x) [d](https://a.b/c) [e](#f)\n"
    expected = "[a](data.md) [b](source/megatron_sspo/loop.py.md) [c](index.md#x) [d](https://a.b/c) [e](#f)\n"
    assert rewrite(text, "docs/rollouts.md", {}) == expected
    assert rewrite("[a](docs/data.md)", "README.md", {}) == "[a](data.md)"
    assert rewrite("[a](../docs/data.md)", "slurm/README.md", {}) == "[a](../../data.md)"
    assert list(outside_targets(text, "docs/rollouts.md", {})) == ["megatron_sspo/loop.py"]
    assert page_of("docs/runs/a/metrics.jsonl").startswith("source/")


def test_code_is_left_alone() -> None:
    text = "```\n[a](nothing.py)\n```\n"
    assert rewrite(text, "docs/data.md", {}) == text


@pytest.mark.parametrize("link", ["nothing.md", "../megatron_sspo/nothing.py", "../../outside.py"])
def test_a_dead_link(link: str) -> None:
    with pytest.raises(DeadLink, match=re.escape(f"docs/data.md links to {link}")):
        rewrite(f"[a]({link})", "docs/data.md", {})


def test_pages_of_sources() -> None:
    assert "def train(run: Run" in source_page("megatron_sspo/loop.py")
    assert "* `policy/`" in source_page("megatron_sspo")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    path = str(page.relative_to(ROOT))
    rewrite(page.read_text(encoding="utf-8"), path, GENERATED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    known = files()
    names = {name.rpartition("/")[2] for name in known}
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))
    missing = []
    for found in (name for span in spans for name in FILE.findall(span) if not NOT_OURS.match(name)):
        if "/" not in found:
            exists = found in names
        else:
            exists = any(str(Path(folder, found)) in known for folder in FOLDERS)
        if not exists:
            missing.append(found)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_exist(page: Path) -> None:
    paths = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("packages/*/tests/*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    names = re.findall(r"`(test_\w+)(?:…)?`", page.read_text(encoding="utf-8"))
    assert [name for name in names if f"def {name}" not in code] == []


def test_the_makefile_installs_the_versions_of_the_extra() -> None:
    (listed,) = re.findall(r'"docs": \[(.*?)\]', (ROOT / "setup.py").read_text(), re.DOTALL)
    pins = re.findall(r'"([^"]+)"', listed)
    (installed,) = re.findall(r"\.venv-docs/bin/\$\(PIP\) (.*)", (ROOT / "Makefile").read_text())
    assert installed.split() == pins
