"""Hooks of MkDocs: the first page, the configuration reference and pages of source files are made here."""

from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

from tools.config_reference import reference
from tools.docs_links import DOCS, HOME, ROOT, DeadLink, outside_targets, page_of, rewrite, source_page

_GENERATED = {"configuration.md": reference}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that the build makes, and a page for each file of the repository that a page links to."""
    texts = {"index.md": (HOME, (ROOT / HOME).read_text(encoding="utf-8"))}
    texts |= {name: (f"{DOCS}/{name}", make()) for name, make in _GENERATED.items()}
    for name, (_, text) in texts.items():
        files.append(File.generated(config, name, content=text))
    waiting = [*texts.values()]
    waiting += [(f"{DOCS}/{f.src_uri}", f.content_string) for f in files.documentation_pages() if not f.generated_by]
    made: set[str] = set()
    while waiting:
        path, text = waiting.pop()
        for target in _checked(lambda path=path, text=text: list(outside_targets(text, path, _GENERATED))):
            if target not in made:
                made.add(target)
                page = source_page(target)
                files.append(File.generated(config, page_of(target), content=page, inclusion=InclusionLevel.NOT_IN_NAV))
                if target.endswith(".md"):
                    waiting.append((target, page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrites the links of a page."""
    return _checked(lambda: rewrite(markdown, _path(page.file.src_uri), _GENERATED))


def _path(src_uri: str) -> str:
    """Returns the path in the repository of a page of the site."""
    if src_uri == "index.md":
        return HOME
    if not src_uri.startswith("source/"):
        return f"{DOCS}/{src_uri}"
    path = src_uri.removeprefix("source/")
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def _checked(make: Any) -> Any:
    try:
        return make()
    except DeadLink as error:
        raise PluginError(str(error)) from error
