"""The command lines of the documentation: each has a command, options and fields that there are."""

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from megatron_sspo.cli.parser import COMMANDS, parser
from megatron_sspo.run import Run
from tests.tools.test_docs_links import PAGES, ROOT

FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
COMMAND = re.compile(rf"(?:^|[\s(/])megatron-sspo ({'|'.join(COMMANDS)})\b(.*)")
OPTION = re.compile(r"\[?(--[a-z][\w-]*)")
FIELD = re.compile(r"--(?:set|vary) [\"']?([a-z_]\w*(?:\.\w+)*)=")
REMARK = re.compile(r"\s(?:#|\||>|&&|;)\s|\s{3,}")  # what follows a command: a comment, a shell's next command


def lines(text: str) -> Iterator[str]:
    """Yields the lines of code, those that a backslash continues as one, and the other code spans."""
    rest = FENCE.sub("", text)
    for block in (*FENCE.findall(text), *INDENTED.findall(rest)):
        yield from re.sub(r"\s*\\\n\s*", " ", block).splitlines()
    for span in SPAN.findall(INDENTED.sub("", rest)):
        yield " ".join(span.split())


def calls(page: Path) -> list[tuple[str, str]]:
    """Returns the command and its arguments, as text, of each call of megatron-sspo on a page."""
    found = map(COMMAND.search, lines(page.read_text(encoding="utf-8")))
    return [(match[1], REMARK.split(match[2])[0]) for match in found if match]


PAGES_OF_COMMANDS = [page for page in PAGES if calls(page)]


def known_options() -> dict[str, set[str]]:
    """Returns the options of each command."""
    (subparsers,) = [one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)]
    return {name: set(command._option_string_actions) for name, command in subparsers.choices.items()}


def parts(hint: Any) -> list[Any]:
    """Returns the types that a type is made of: `dict[str, int] | None` has dict[str, int], str, int and None."""
    return [hint, *(part for argument in get_args(hint) for part in parts(argument))]


def is_field(path: str) -> bool:
    """Returns whether a dotted path leads to a field of Run; anything is a key of a mapping."""
    kinds, mappings = [Run], False
    for name in path.split("."):
        hints = {field.name: get_type_hints(kind)[field.name] for kind in kinds for field in fields(kind)}
        if name in hints:
            mappings = any(get_origin(part) in (dict, Mapping) for part in parts(hints[name]))
            kinds = [part for part in parts(hints[name]) if is_dataclass(part)]
        elif hints and not mappings:
            return False
        else:
            mappings = False  # the name is the key
    return True


def test_what_is_a_field() -> None:
    assert all(map(is_field, ("optimizer.lr", "evaluation.sets.mine.prompts.template", "megatron.anything")))
    assert not any(map(is_field, ("optimizer.rate", "evaluation.sets.mine.prompts.templates", "evaluation.set")))


@pytest.mark.parametrize("page", PAGES_OF_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_and_fields_are_known(page: Path) -> None:
    known, unknown = known_options(), []
    for command, arguments in calls(page):
        options = [match[1] for match in map(OPTION.match, shlex.split(arguments)) if match]
        unknown += [f"{command} {option}" for option in options if option not in known[command]]
        unknown += [f"{command} {field}" for field in FIELD.findall(arguments) if not is_field(field)]
    assert unknown == []


def test_commands_of_code_blocks_are_understood() -> None:
    """Calls in the README are whole; other pages have calls with placeholders, too."""
    for command, arguments in calls(ROOT / "README.md"):
        if arguments:  # else a text names the command
            parser().parse_args([command, *shlex.split(arguments)])
