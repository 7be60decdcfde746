"""Links of the documentation: links that leave `docs/` lead to pages made of the repository's own files."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
DOCS = "docs"
HOME = "README.md"  # the site's first page
_ROWS = f"{DOCS}/runs"  # rows of runs, which are shown like sources

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^\s*(```|~~~)")
_LANGUAGES = {".py": "python", ".sh": "bash", ".sbatch": "bash", ".c": "c", ".json": "json", ".toml": "toml"}
_HIDDEN = {"__pycache__"}


class DeadLink(Exception):
    """Raised for a link to a file that does not exist; the message names the page and the link."""


def page_of(path: str) -> str:
    """Returns the site's page, relative to `docs/`, for a file or folder of the repository: "docs/data.md" -> data.md.

    Any other file has a page under `source/`.
    """
    if path == HOME:
        return "index.md"
    if is_of_the_site(path):
        return str(PurePosixPath(path).relative_to(DOCS))
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def is_of_the_site(path: str) -> bool:
    """Returns whether a file is a page or a picture of `docs/`."""
    inside = PurePosixPath(path)
    return inside.is_relative_to(DOCS) and not inside.is_relative_to(_ROWS)


def rewrite(text: str, path: str, generated: Mapping[str, str]) -> str:
    """Rewrites a page's relative links from the repository's places to the site's.

    Args:
        text: Markdown.
        path: the page's path in the repository.
        generated: pages of `docs/` that the build makes.

    Raises:
        DeadLink: a link leads nowhere.
    """
    folder = PurePosixPath(page_of(path)).parent

    def moved(link: str) -> str:
        target, anchor = resolve(link, path)
        check(target, link, path, generated)
        return os.path.relpath(page_of(target), folder) + anchor

    return _map_links(text, moved)


def outside_targets(text: str, path: str, generated: Mapping[str, str]) -> Iterator[str]:
    """Yields the repository's files and folders that a page links to, except the site's own.

    Raises:
        DeadLink: a link leads nowhere.
    """
    found: list[str] = []

    def note(link: str) -> str:
        target, _ = resolve(link, path)
        check(target, link, path, generated)
        found.append(target)
        return link

    _map_links(text, note)
    yield from (target for target in found if not is_of_the_site(target) and target != HOME)


def resolve(link: str, path: str) -> tuple[str, str]:
    """Returns the path in the repository that a page's relative link leads to, and its anchor, such as "#measured"."""
    target, mark, anchor = link.partition("#")
    return os.path.normpath(PurePosixPath(path).parent / target), mark + anchor


def check(target: str, link: str, path: str, generated: Mapping[str, str]) -> None:
    """Raises DeadLink if a link's target is neither in the repository nor made by the build."""
    if target.startswith("..") or not ((ROOT / target).exists() or page_of(target) in generated):
        raise DeadLink(f"{path} links to {link}, and there is no {target} in the repository")


def source_page(path: str) -> str:
    """Returns a page with a file's text, or with a folder's list of files. Markdown is shown as it is."""
    front = "---\nhide: [toc]\nsearch:\n  exclude: true\n---\n\n"
    place = ROOT / path
    if place.is_dir():
        names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in place.iterdir() if p.name not in _HIDDEN)
        return front + f"# {path}/\n\n" + "\n".join(f"* `{name}`" for name in names) + "\n"
    text = place.read_text(encoding="utf-8")
    if place.suffix == ".md":
        return text
    language = _LANGUAGES.get(place.suffix, "text")
    return f'{front}# {path}\n\n~~~~~~ {{ .{language} linenums="1" }}\n{text.rstrip()}\n~~~~~~\n'


def _map_links(text: str, function: Callable[[str], str]) -> str:
    """Applies a function to every relative link to a file that is not in a code block."""

    def replaced(match: re.Match[str]) -> str:
        link = match[2]
        is_local = not re.match(r"[a-z]+:|#|/", link)
        return f"{match[1]}{function(link) if is_local else link}{match[3]}"

    lines, in_fence = [], False
    for line in text.splitlines(keepends=True):
        if _FENCE.match(line):
            in_fence = not in_fence
        lines.append(line if in_fence else _LINK.sub(replaced, line))
    return "".join(lines)
