"""Rewards programs that pass their checks in a sandbox: r = r_answer + r_format."""

import ast
import re
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any, TypeVar

from megatron_sspo.config.kinds import Amount
from megatron_sspo.errors import UserError
from megatron_sspo.processes.console import pluralize
from megatron_sspo.processes.cores import num_cores
from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.reward.format import extract_answer, format_reward
from megatron_sspo.types import Prompt
from sspo_sandbox import Case, SandboxError, SandboxPool, open_sandbox
from sspo_sandbox.probe import check_options

# After the language there may be attributes, such as `title=x` or `{.numberLines}`, but no other words: a sentence may
# name the fence.
_OPENING = re.compile(
    r"```[ \t]*(?:python3?|py)(?:[ \t]+[\w.-]+=[^`\n]*|[ \t]*\{[^`\n]*\}[ \t]*\r?|[ \t]*\r?)\n", re.IGNORECASE
)
_CLOSING = re.compile(r"^[ \t]*```", re.MULTILINE)
_OWN_OPTIONS = ("concurrency", "rows_tried")  # all others are the sandbox's
_SHOWN_ROWS = 10
_LONGEST = 100_000  # characters of a program

Checks = tuple[tuple[str, ...], tuple[Case, ...]]
Judge = TypeVar("Judge", bound="CodeReward")


def check_values(**options: Any) -> None:
    """Raises UserError for options of the sandbox that are invalid or contradict each other, on any machine."""
    with sandbox_errors():
        check_options(**{name: value for name, value in options.items() if name not in _OWN_OPTIONS})


@contextmanager
def sandbox_errors(what: str = "", remedy: str = "") -> Iterator[None]:
    """Turns errors of the sandbox into UserErrors: `what` begins the message, and `remedy` ends it."""
    try:
        yield
    except SandboxError as error:
        raise UserError(f"{what}{error}{remedy}") from error


def check_prompt(prompt: Prompt, packages: Sequence[str] = (), url: str = "") -> None:
    """Raises UserError if the checks of a prompt's row are invalid, or import a module that a sandbox here lacks."""
    tests, _ = read_checks(prompt)
    known = None if url else _modules_of(tuple(packages))
    for module in (name for text in tests for name in _imported(ast.parse(text))):
        if known is not None and module not in known:
            raise UserError(
                f"prompt {prompt.id!r}: its tests import {module}, which the sandbox does not have, so every program "
                "would fail: name its distribution in reward_options.packages, or remove the row"
            )


@cache
def _modules_of(packages: tuple[str, ...]) -> frozenset[str] | None:
    """Returns the modules that tests can import; None if a package is not installed, as where a run is sent off."""
    wanted = set(map(str.casefold, packages))
    by_module = {module: set(map(str.casefold, names)) for module, names in packages_distributions().items()}
    if not wanted <= {name for names in by_module.values() for name in names}:
        return None
    return frozenset({"solution", *sys.stdlib_module_names, *(m for m, names in by_module.items() if names & wanted)})


def _imported(node: ast.AST) -> Iterator[str]:
    """Yields the modules that code imports, by their first names, outside of `try`, which may do without them."""
    match node:
        case ast.Try():
            return
        case ast.Import(names=names):
            yield from (alias.name.partition(".")[0] for alias in names)
        case ast.ImportFrom(module=str(name), level=0):
            yield name.partition(".")[0]
    for part in ast.iter_child_nodes(node):
        yield from _imported(part)


class CodeReward:
    """{"answer": I[the program passes all checks], "format": r_format}.

    The program is the last block that ```` ```python ```` opens: between `<answer>` and `</answer>` if a response has
    these tags, else anywhere in it. A response without such a block, or whose only block is not closed, has no program.

    The checks are in the prompt's row. `tests` is a text or a list of texts with assert statements. `cases` is a list
    of objects with the texts `stdin` and `stdout`. If the row has neither, the program has to print `answer`.
    """

    def __init__(self, pool: SandboxPool, rows_tried: int = 0) -> None:
        self._pool, self._rows_tried = pool, rows_tried
        self._lock = threading.Lock()
        self._reasons: Counter[str] = Counter()

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """Returns a dictionary for each pair of prompt and response, in order: see `read` and `judge`."""
        checks = {prompt.id: self.read(prompt) for prompt in prompts}
        attempts = [(extract_program(r), checks[p.id]) for p, r in zip(prompts, responses, strict=True)]
        reasons = self.judge(attempts)
        return [
            {"answer": float(reason == "passed"), "format": format_reward(prompt.prefill + response)}
            for prompt, reason, response in zip(prompts, reasons, responses, strict=True)
        ]

    def read(self, prompt: Prompt) -> Checks:
        """Returns the checks of a prompt's row; inputs that the sandbox's limits exclude would fail every program."""
        tests, cases = read_checks(prompt)
        limits, sizes = self._pool.limits, [len(case.stdin.encode(errors="replace")) for case in cases]
        needs = {"disk_bytes": max(sizes, default=0), "memory_bytes": 2 * sum(sizes)}  # all inputs and their JSON
        for name, needed in needs.items():
            if needed > (most := getattr(limits, name)):
                raise UserError(
                    f"prompt {prompt.id!r}: the inputs of its cases need {needed:,} bytes of the sandbox's {name}, and "
                    f"it has {most:,}: raise it in reward_options.limits (on a server, with its options), or remove "
                    "the row"
                )
        return tests, cases

    def judge(self, attempts: Sequence[tuple[str | None, Checks]]) -> list[str]:
        """Returns the reason of each program's end, as named in `metrics`; None is a response without a program."""
        jobs = {(program, checks) for program, checks in attempts if program is not None and len(program) <= _LONGEST}
        ordered = list(jobs)
        with sandbox_errors("programs cannot be judged: ", "; see docs/sandbox.md, and resume the run"):
            verdicts = self._pool.check_all((program, *checks) for program, checks in ordered)
        reasons = {job: verdict.reason for job, verdict in zip(ordered, verdicts, strict=True)}
        return [self.count(_reason(program, reasons, checks)) for program, checks in attempts]

    def remarks(self, prompts: Sequence[Prompt]) -> Iterator[str]:
        """Yields what the user should know of the rows: whose tests pass for a program that does nothing."""
        rows = [(prompt.id, tests) for prompt in prompts if (tests := self.read(prompt)[0])][: self._rows_tried]
        if not rows:
            return
        yield f"trying the tests of {pluralize(len(rows), 'row')} with programs that do nothing (option rows_tried)"
        with sandbox_errors("tests cannot be tried: ", "; see docs/sandbox.md"):
            stubs = self._pool.find_stubs(tests for _, tests in rows)
        found = [f"{id} ({passing[0]})" for (id, _), passing in zip(rows, stubs, strict=True) if passing]
        if found:
            more = f", and {len(found) - _SHOWN_ROWS:,} more" if len(found) > _SHOWN_ROWS else ""
            yield (
                f"warning: the tests of {len(found):,} of the {len(rows):,} rows pass for a program that does nothing, "
                f"so wrong programs are rewarded: {', '.join(found[:_SHOWN_ROWS])}{more}; add tests, or remove the rows"
            )

    def metrics(self) -> dict[str, float]:
        """Returns, for this process since the last call, the share of responses by reason and the sandbox's latency."""
        with self._lock:
            reasons, self._reasons = self._reasons, Counter()
        shares = {f"code/{reason}": number / reasons.total() for reason, number in sorted(reasons.items())}
        return {**shares, **{f"code/{name}": value for name, value in self._pool.metrics().items()}}

    def close(self) -> None:
        """Ends the sandboxes."""
        self._pool.close()

    def count(self, reason: str) -> str:
        """Counts a response with this reason; returns the reason."""
        with self._lock:
            self._reasons[reason] += 1
        return reason


def extract_program(response: str) -> str | None:
    """Returns the last Python block of the answer, or of the response if it has no answer; None if there is none."""
    answer = extract_answer(response)
    return extract_last_block(response if answer is None else answer)


def extract_last_block(text: str) -> str | None:
    """Returns the last Python block in a text, without the indentation of its fence; None if there is none."""
    found, end = None, 0
    while opening := _OPENING.search(text, end):
        closing = _CLOSING.search(text, opening.end())
        if closing is None:
            break  # nor is any later block closed: to look for the end of each would take quadratic time
        found, end = (opening, closing), closing.end()
    if found is None:
        return None
    opening, closing = found
    block = text[opening.end() : closing.start()]
    is_indented = text[text.rfind("\n", 0, opening.start()) + 1 : opening.start()].isspace()
    return textwrap.dedent(block) if is_indented else block  # such as a block in an item of a list


def read_checks(prompt: Prompt) -> Checks:
    """Returns the checks of a prompt's row: tests and cases; raises UserError for checks of another form."""
    tests, cases = prompt.metadata.get("tests"), prompt.metadata.get("cases")
    if not tests and not cases:
        if not prompt.answer:
            raise UserError(
                f"prompt {prompt.id!r} has neither tests, nor cases, nor an answer that a program has to print: give "
                "its row one of them, or remove it"
            )
        return (), (Case(stdin="", stdout=prompt.answer),)
    for name, value in (("tests", tests), ("cases", cases)):
        if value and not isinstance(value, Sequence):
            raise UserError(f"prompt {prompt.id!r}: {name} is of type {type(value).__name__}: it must be a list")
    texts = [tests] if isinstance(tests, str) else list(tests or ())
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"prompt {prompt.id!r}: a test is of type {type(text).__name__}: it must be Python source")
        try:
            is_empty = not ast.parse(text).body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # the last two: nested too deeply
            reason = str(error) or type(error).__name__
            raise UserError(f"prompt {prompt.id!r}: a test is not Python ({reason}): fix or remove the row") from error
        if is_empty:
            raise UserError(f"prompt {prompt.id!r}: a test is empty, so every program would pass it: remove the test")
    pairs: list[Case] = []
    for case in cases or ():
        if not isinstance(case, Mapping) or not all(isinstance(case.get(name), str) for name in ("stdin", "stdout")):
            raise UserError(f"prompt {prompt.id!r}: a case must be an object with the strings 'stdin' and 'stdout'")
        pairs.append(Case(stdin=case["stdin"], stdout=case["stdout"]))
    return tuple(texts), tuple(pairs)


def _reason(program: str | None, reasons: Mapping[tuple[str, Checks], str], checks: Checks) -> str:
    if program is None:
        return "no_program"
    return "too_long" if len(program) > _LONGEST else reasons[program, checks]


def reward_of(kind: type[Judge]) -> Callable[..., Judge]:
    """Returns the function that builds a reward of this kind."""

    def reward(
        concurrency: Amount = 0,
        limits: Mapping[str, Any] | None = None,
        url: str = "",
        python: str = "",
        packages: Sequence[str] = (),
        cgroup: str = "",
        rows_tried: Amount = 200,
    ) -> Judge:
        """Builds the reward. It requires a sandbox that passes its probe.

        Args:
            concurrency: the number of sandboxes at a time; 0 takes the number of cores that this process may use.
            limits: the limits of each program: fields of `sspo_sandbox.Limits`, such as
                {"wall_seconds": 5.0}.
            url: the address of a sandbox on another machine; it replaces the one on this machine.
            python, packages, cgroup: see `sspo_sandbox.Sandbox`.
            rows_tried: the number of rows, the first ones, whose tests are tried at the start of a run with programs
                that do nothing.

        Raises:
            UserError: an option of the sandbox is invalid, or it cannot be made or reached, or fails its probe.
        """
        with sandbox_errors():
            runner = open_sandbox(limits, url=url, python=python, packages=packages, cgroup=cgroup)
            return kind(SandboxPool(runner, concurrency or num_cores(), mark_progress), rows_tried)

    return reward


reward = reward_of(CodeReward)
