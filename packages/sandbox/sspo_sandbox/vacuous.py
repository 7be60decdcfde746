"""Finds tests that pass for a program that does nothing, such as `return []`: they do not tell right from wrong."""

import ast
import builtins
import json
from collections.abc import Sequence

from sspo_sandbox.remote import Runner
from sspo_sandbox.types import SandboxBroken

# The bodies of the functions of such programs, by what is said of them.
STUBS = {
    **{line: line for line in ("return None", "return 0", "return 1", "return True", "return False", "return ''")},
    **{line: line for line in ("return []", "return {}", "return iter(())", "raise ValueError")},
    "return the first argument": "return a[0] if a else None",
    "return a tuple of the first argument": "return a[:1]",
    "empty the first argument and return []": "hasattr(a[0], 'clear') and a[0].clear() if a else 0; return []",
    "empty the first argument and return 0": "hasattr(a[0], 'clear') and a[0].clear() if a else 0; return 0",
    "raise every exception": "raise Every",
    "return an object whose methods do nothing": "return Idle()",
}
_CLASSES = """
class Every(ValueError, KeyError, IndexError, TypeError, ZeroDivisionError, NotImplementedError, PermissionError): pass
class Idle:
    def __getattr__(self, name): return lambda *a, **k: None
"""
# Judges each program in a process of its own, as `inside/judge.py` does, and prints the numbers of those that passed.
_JUDGE_ALL = """
import json, os, signal, sys
sys.path.append("/sandbox")
from sspo_sandbox.inside.judge import find_verdict
from sspo_sandbox.inside.program_side import start_program
job = json.load(sys.stdin)
for number, program in enumerate(job["programs"]):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, job["seconds"])
        for stream in (1, 2):
            os.dup2(os.open("/dev/null", os.O_WRONLY), stream)
        os._exit(find_verdict(start_program(), program, job["tests"])[0] != "passed")
    if os.waitpid(child, 0)[1] == 0:
        print(number)
"""


def find_stubs(runner: Runner, tests: Sequence[str]) -> list[str]:
    """Returns the stubs that pass all tests of a row; tests that take long count as failed.

    Raises SandboxBroken if the sandbox itself could not be made, or is that of another version of this package.
    """
    programs = [stub_program(tests, body) for body in STUBS.values()]
    job = {"programs": programs, "tests": list(tests), "seconds": runner.limits.wall_seconds / len(programs)}
    result = runner.run(_JUDGE_ALL, json.dumps(job))
    if result.end_reason == "error":
        raise SandboxBroken(f"the judge cannot be imported: {result.stderr.strip().rpartition(chr(10))[2][:200]}")
    return [list(STUBS)[int(number)] for number in result.stdout.split()]


def stub_program(tests: Sequence[str], body: str) -> str:
    """Returns a program in which every name that the tests use, and do not define, is a function with this body."""
    functions = (f"def {name}(*a, **k):\n    {body}\n" for name in _free_names(tests))
    return _CLASSES + "".join(functions)


def _free_names(tests: Sequence[str]) -> list[str]:
    bound: set[str] = set()
    used: set[str] = set()
    for node in (node for test in tests for node in ast.walk(ast.parse(test))):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.ImportFrom(module="solution", names=names):
                used |= {alias.name for alias in names} - {"*"}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.Attribute(value=ast.Name(id="solution"), attr=name):
                used.add(name)
    return sorted(name for name in used - bound if not hasattr(builtins, name))
