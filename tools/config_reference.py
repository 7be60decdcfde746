"""Prints the reference of a recipe's fields as Markdown: `python -m tools.config_reference`.

Names, types, defaults and comments are read from the sources of the dataclasses, which are not imported.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent / "megatron_sspo"
_FILES = ("run.py", "types.py", "objective/penalties.py", "objective/correction.py")
_KINDS = ("config/kinds.py", "config/objectives.py", "config/check_objective.py")
_ROOT = "Run"

_INTRODUCTION = """\
# Configuration

A recipe is a Python function that returns a `Run`: [megatron_sspo/run.py](../megatron_sspo/run.py). Every field can be
set on the command line by its place, as in `--set rollouts.sampling.temperature=0.7`, and every value is checked before
anything starts. This page is made from the dataclasses' source by `python -m tools.config_reference`.
"""


@dataclass(frozen=True)
class Field:
    """A field of a dataclass."""

    name: str
    type: ast.expr
    default: str | None  # source text; None: the field is required
    comment: str


@dataclass(frozen=True)
class Class:
    """A dataclass of the configuration."""

    name: str
    docstring: str
    fields: tuple[Field, ...]


def main() -> int:
    """Prints the reference."""
    print(reference(), end="")
    return 0


def reference() -> str:
    """Returns the page: a section for `Run`, and one for each class that a field of it has, with their places."""
    classes = {
        found.name: found for file in _FILES for found in read_classes((_PACKAGE / file).read_text(encoding="utf-8"))
    }
    names, descriptions = read_kinds()
    places = _places(classes)
    parts = [_INTRODUCTION]
    for name, found in places.items():
        parts.append(f"## {name}\n\n{classes[name].docstring}\n")
        if name != _ROOT:
            parts.append(f"Its place: {', '.join(f'`{place}`' for place in found)}.\n")
        parts.append("| field | type | default | |\n|---|---|---|---|")
        for field in classes[name].fields:
            default = "**required**" if field.default is None else f"`{_in_cell(field.default)}`"
            kind = describe_type(field.type, set(places), descriptions, names)
            parts.append(f"| `{field.name}` | {_in_cell(kind)} | {default} | {_in_cell(field.comment)} |")
        parts.append("")
    return "\n".join(parts)


def read_classes(source: str) -> Iterator[Class]:
    """Yields the dataclasses of a file that have annotated fields."""
    comments = {
        token.start[0]: (token.string.lstrip("# "), not token.line[: token.start[1]].strip())
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or not any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            continue
        fields = tuple(
            Field(item.target.id, item.annotation, _default(item.value), _comment(item, comments))
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        )
        yield Class(node.name, (ast.get_docstring(node) or "").split("\n\nRaises:")[0], fields)


def read_kinds() -> tuple[dict[str, ast.expr], dict[str, str]]:
    """Returns the names that the files of kinds define with their values, and the description of each kind."""
    values: dict[str, ast.expr] = {}
    for file in (*_KINDS, *_FILES):
        for node in ast.parse((_PACKAGE / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = node.value
    found = {name: _description(value, values) for name, value in values.items()}
    return values, {name: text for name, text in found.items() if text}


def describe_type(node: ast.expr, classes: set[str], kinds: dict[str, str], names: dict[str, ast.expr]) -> str:
    """Describes an annotation in words, with links to the sections of classes."""
    again = [classes, kinds, names]
    match node:
        case ast.Constant(value=str(name)):  # a forward reference
            return describe_type(ast.Name(name), *again)
        case ast.Constant(value=value):
            return f"`{value}`"
        case ast.Name(id=name) if name in classes:
            return f"[{name}](#{name.lower()})"
        case ast.Name(id=name) if name in kinds:
            return kinds[name]
        case ast.Name(id=name) if name in names:
            return describe_type(names[name], *again)
        case ast.Name(id="bool"):
            return "True or False"
        case ast.Name(id="float"):
            return "a finite number"
        case ast.BinOp(left=left, right=right):
            return f"{describe_type(left, *again)}; or {describe_type(right, *again)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            values = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return " or ".join(f"`{ast.unparse(value)}`" for value in values)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, *_])):
            return f"a tuple, of each: {describe_type(item, *again)}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *_])):
            if not (text := _description(node, names)):
                return describe_type(inner, *again)
            held = ", ".join(f"[{name}](#{name.lower()})" for name in sorted(classes & _names_of(inner)))
            return f"{text}{f' ({held})' if held else ''}"
    raise ValueError(f"the annotation {ast.unparse(node)} has no description")


def _places(classes: dict[str, Class]) -> dict[str, list[str]]:
    """Returns the classes that can be reached from `Run`, in order, each with the places where it is a value."""
    found: dict[str, list[str]] = {}

    def visit(name: str, place: str) -> None:
        found.setdefault(name, []).append(place)
        for field in classes[name].fields:
            inside = f"{place}.{field.name}" if place else field.name
            for other in sorted(_names_of(field.type) & classes.keys()):
                if other == name:
                    found[name].append(f"{inside}[…]")
                else:
                    visit(other, inside if "Mapping" not in ast.unparse(field.type) else f"{inside}.NAME")

    visit(_ROOT, "")
    return found


def _names_of(node: ast.expr) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)}  # forward references


def _default(value: ast.expr | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
        if "default_factory" not in given:
            return given.get("default")
        made = given["default_factory"]
        return "{}" if made == "dict" else f"{made}()"
    return ast.unparse(value)


def _comment(node: ast.AnnAssign, comments: dict[int, tuple[str, bool]]) -> str:
    """Returns the comment at the end of a field's lines, or the comment lines above it."""
    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    if beside := [comments[line][0] for line in lines if line in comments]:
        return " ".join(beside)
    above, line = [], node.lineno - 1
    while line in comments and comments[line][1]:
        above.insert(0, comments[line][0])
        line -= 1
    return " ".join(above)


def _description(node: ast.expr, names: dict[str, ast.expr]) -> str:
    """Returns the `description` of the last `Field` in an annotation, or "" if there is none."""
    texts = [
        keyword.value
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "Field"
        for keyword in part.keywords
        if keyword.arg == "description"
    ]
    if not texts:
        return ""
    text = names[texts[-1].id] if isinstance(texts[-1], ast.Name) else texts[-1]
    return str(text.value) if isinstance(text, ast.Constant) else ""


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
