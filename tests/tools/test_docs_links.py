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


def test_links_within_the_site_and_out_of_it() -> None:
    text = "[a](data.md) [b](../megatron_sspo/loop.py) [c](../README.md#x) [d](https://a.b/c) [e](#f)\n"
    expected = "[a](data.md) [b](source/megatron_sspo/loop.py.md) [c](index.md#x) [d](https://a.b/c) [e](#f)\n"
    assert rewrite(text, "docs/rollouts.md", {}) == expected
    assert rewrite("[a](docs/data.md)", "README.md", {}) == "[a](data.md)"
    assert rewrite("[a](../docs/data.md)", "slurm/README.md", {}) == "[a](../../data.md)"
    assert list(outside_targets(text, "docs/rollouts.md", {})) == ["megatron_sspo/loop.py"]
    code = "```\n[a](nothing.py)\n```\n"
    assert rewrite(code, "docs/data.md", {}) == code
    assert page_of("docs/runs/a/metrics.jsonl").startswith("source/")


@pytest.mark.parametrize("link", ["nothing.md", "../megatron_sspo/nothing.py", "../../outside.py"])
def test_a_dead_link(link: str) -> None:
    with pytest.raises(DeadLink, match=re.escape(f"docs/data.md links to {link}")):
        rewrite(f"[a]({link})", "docs/data.md", {})


def test_pages_of_sources() -> None:
    assert "def train(run: Run" in source_page("megatron_sspo/loop.py")
    assert "* `policy/`" in source_page("megatron_sspo")


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Returns the paths of the repository's files."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return set(done.stdout.splitlines())


@pytest.fixture(scope="module")
def code_of_tests() -> str:
    paths = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("packages/*/tests/*.py")]
    return "".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_files_and_tests_that_a_page_names_exist(page: Path, known: set[str], code_of_tests: str) -> None:
    text = page.read_text(encoding="utf-8")
    rewrite(text, str(page.relative_to(ROOT)), GENERATED)
    names = {name.rpartition("/")[2] for name in known}
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    files = {name for span in spans for name in FILE.findall(span) if not NOT_OURS.match(name)}
    assert not {name for name in files if "/" not in name} - names
    assert not [
        name for name in files if "/" in name and not any(str(Path(folder, name)) in known for folder in FOLDERS)
    ]
    tests = re.findall(r"`(test_\w+)(?:…)?`", text)
    assert [name for name in tests if f"def {name}" not in code_of_tests] == []


def test_the_makefile_installs_the_versions_of_the_extra() -> None:
    (listed,) = re.findall(r'"docs": \[(.*?)\]', (ROOT / "setup.py").read_text(), re.DOTALL)
    pins = re.findall(r'"([^"]+)"', listed)
    (installed,) = re.findall(r"\.venv-docs/bin/\$\(PIP\) (.*)", (ROOT / "Makefile").read_text())
    assert installed.split() == pins
