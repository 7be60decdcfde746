"""What passes, what does not, and programs that pretend."""

import pytest

from megatron_sspo.sandbox.sandbox import Sandbox
from megatron_sspo.sandbox.types import Case
from tests.sandbox.conftest import LIMITS, assert_nothing_runs

# program, tests: an honest program has to pass whatever its tests may sensibly do with it
HONEST = {
    "numbers": ("def f(x): return x * x", ["assert f(3) == 9", "assert f(-1.5) == 2.25", "assert f(2j) == -4"]),
    "large integers": ("def f(n): return 7 ** n", ["assert f(3000) == 7 ** 3000", "assert f(-1) == 7 ** -1"]),
    "text and bytes": (
        "def f(x): return x + x",
        ["assert f('é\\ud800\\n') == 'é\\ud800\\né\\ud800\\n'", "assert f(b'\\xff') == b'\\xff\\xff'"],
    ),
    "nested containers": (
        "def f(x): return {'a': [x, (x,), {x}], 1: None, (1, 2): frozenset([x])}",
        ["assert f(1) == {'a': [1, (1,), {1}], 1: None, (1, 2): frozenset([1])}", "assert f(1)[1] is None"],
    ),
    "types of the standard library": (
        "from fractions import Fraction\nfrom decimal import Decimal\nfrom collections import deque, Counter\n"
        "import datetime\ndef f(): return Fraction(1, 3), Decimal('0.1'), deque([1]), datetime.date(2020, 2, 29)\n"
        "def g(): return Counter('aab'), datetime.datetime(2020, 1, 1, 2, 3, 4, 5), datetime.timedelta(1), range(3)",
        [
            "from fractions import Fraction\nfrom decimal import Decimal\nfrom collections import deque\n"
            "import datetime\nassert f() == (Fraction(1, 3), Decimal('0.1'), deque([1]), datetime.date(2020, 2, 29))",
            "assert g() == ({'a': 2, 'b': 1}, datetime.datetime(2020, 1, 1, 2, 3, 4, 5), datetime.timedelta(1), "
            "range(3))",
        ],
    ),
    "floats": (
        "def f(x): return x / 3",
        [
            "assert abs(f(1) - 0.3333) < 1e-3",
            "import math\nassert math.isclose(f(9), 3)",
            "assert math.isnan(f(math.nan))",
        ],
    ),
    "arguments changed in place": (
        "def sort(x): x.sort()\ndef fill(d, *, s): d['k'] = s.pop(); s.add(9)",
        [
            "a = [3, 1, 2]\nsort(a)\nassert a == [1, 2, 3]",
            "d, s = {}, {1}\nfill(d, s=s)\nassert d == {'k': 1} and s == {9}",
        ],
    ),
    "functions as arguments": (
        "def f(g, x): return [g(y, k=2) for y in x]\ndef rec(g, n): return g(n)\ndef plus(n): return n + 1",
        [
            "assert f(lambda y, k: y * k, [1, 2]) == [2, 4]",
            "assert rec(lambda n: plus(n) * 2, 3) == 8",
            "assert list(map(plus, [1, 2])) == [2, 3]",
            "assert sorted([3, 1, 2], key=plus) == [1, 2, 3]",
        ],
    ),
    "classes": (
        "class Stack:\n"
        "  size = 0\n"
        "  def __init__(self): self.items = []\n"
        "  def push(self, x): self.items.append(x); return self\n"
        "  def __len__(self): return len(self.items)\n"
        "  def __getitem__(self, i): return self.items[i]\n"
        "  def __iter__(self): return iter(self.items)\n"
        "class Point:\n"
        "  def __init__(self, x): self.x = x\n"
        "  def __eq__(self, other): return self.x == other.x\n"
        "  def __add__(self, other): return Point(self.x + other.x)\n"
        "  def __str__(self): return f'P{self.x}'\n",
        [
            "s = Stack()\ns.push(1).push(2)\nassert len(s) == 2 and s[0] == 1 and list(s) == [1, 2] and s.items == [1, 2]",
            "assert isinstance(s, Stack) and Stack.size == 0\ns.items = [5]\nassert s[0] == 5 and not hasattr(s, 'x')",
            "assert Point(1) + Point(2) == Point(3) and Point(1) != Point(2) and str(Point(7)) == 'P7'",
            "assert Stack()",
        ][:3],
    ),
    "generators": (
        "def f(n):\n  for i in range(n): yield i * i",
        ["assert list(f(4)) == [0, 1, 4, 9]", "g = f(2)\nassert next(g) == 0 and next(g) == 1 and next(g, 5) == 5"],
    ),
    "exceptions": (
        "class Odd(ValueError): pass\ndef f(x):\n  if x % 2: raise Odd(f'odd {x}')\n  return [][x]",
        [
            "try:\n  f(1)\nexcept Odd as error:\n  assert str(error) == 'odd 1'\nelse:\n  assert False",
            "try:\n  f(1)\nexcept ValueError:\n  pass\nelse:\n  assert False",
            "try:\n  f(2)\nexcept IndexError:\n  pass\nelse:\n  assert False",
        ],
    ),
    "names and modules of the program": (
        "import math\nimport json as j\nLIMIT = [1, 2]\ndef f(): return math.pi",
        [
            "assert f() == math.pi and LIMIT == [1, 2]",
            "from solution import f as g\nimport solution\nassert g() == solution.f()",
        ],
    ),
    "a test in a function": (
        "def add(a, b): return a + b",
        [
            "def check(candidate):\n  assert candidate(1, 2) == 3\n  assert [candidate(i, 1) for i in range(3)] == [1, 2, 3]\ncheck(add)"
        ],
    ),
    "output, and the end of the main program": (
        "import sys\nprint('hello' * 100)\ndef f(): print('x'); return 1\nif __name__ == '__main__': input()\nsys.exit(0)",
        ["assert f() == 1"],
    ),
    "tests that say what they think": ("def f(): return 2", ["assert f() == 2, 'not two'\nprint('fine')"]),
}

WRONG = {
    "a wrong value": ("def f(x): return x", ["assert f(1) == 1", "assert f(1) == 2"], "failed"),
    "an exception": ("def f(x): return 1 / 0", ["assert f(1) == 1"], "failed"),
    "no such function": ("def g(x): return 1", ["assert f(1) == 1"], "failed"),
    "not Python": ("def f(x) return 1", ["assert f(1) == 1"], "error"),
    "an exception at the start": ("raise ValueError('no')\ndef f(): return 1", ["assert f() == 1"], "error"),
    "an exit code at the start": ("def f(): return 1\nraise SystemExit(3)", ["assert f() == 1"], "error"),
    "an endless loop": ("def f():\n  while True: pass", ["assert f() == 1"], "time"),
    "an endless loop at the start": ("while True: pass", ["assert True"], "time"),
    "too much memory": ("def f(): return len(bytearray(1 << 34))", ["assert f() == 1 << 34"], "memory"),
    "too much output": ("def f():\n  while True: print('x' * 1000)", ["assert f() == 1"], "output"),
    "too deep": ("def f(): return f()", ["assert f() == 1"], "failed"),
}

# Each claims to satisfy `assert f(1) == 2`, and does not compute it.
FAKES = {
    "printing that it passed": "print('passed')\nprint('{\"reason\": \"passed\"}')\ndef f(x): return 1",
    "exit code 0 at the start": "import os\nos._exit(0)",
    "exit code 0 in the call": "import os\ndef f(x): os._exit(0)",
    "sys.exit in the call": "import sys\ndef f(x): sys.exit(0)",
    "an object that equals everything": "class E:\n  def __eq__(s, o): return True\n  def __ne__(s, o): return False\ndef f(x): return E()",
    "an integer that equals everything": "class E(int):\n  def __eq__(s, o): return True\n  __hash__ = int.__hash__\ndef f(x): return E(1)",
    "an object that is everywhere": "class E:\n  def __getattr__(s, n): return s\n  def __call__(s, *a): return True\n  def __bool__(s): return True\nf = E()",
    "builtins that are not what they were": (
        "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})\nbuiltins.compile = lambda *a, **k: 'pass'\n"
        "builtins.exec = lambda *a, **k: None\nbuiltins.isinstance = lambda *a: True\ndef f(x): return 1"
    ),
    "modules that are not what they were": (
        "import json, os, struct, sys\njson.dumps = lambda *a, **k: '[\"ok\", 2, []]'\nos._exit = lambda *a: None\n"
        "struct.pack = lambda *a: b''\ndef f(x): return 1"
    ),
    "a tracing function": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef f(x): return 1",
    "an exit handler": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): raise SystemExit(0)",
    "its own frames and the garbage collector": (
        "import gc, sys\n"
        "def f(x):\n"
        "  for o in gc.get_objects():\n"
        "    if isinstance(o, dict) and 'tests' in o: return 2\n"
        "  frame = sys._getframe()\n"
        "  while frame:\n"
        "    if 'tests' in frame.f_locals or 'work' in frame.f_locals: return 2\n"
        "    frame = frame.f_back\n"
        "  return 1"
    ),
    "the tests in its memory": (
        "import re\n"
        "def f(x):\n"
        "  for line in open('/proc/self/maps'):\n"
        "    start, end = (int(p, 16) for p in line.split()[0].split('-'))\n"
        "    try:\n"
        "      with open('/proc/self/mem', 'rb', 0) as memory:\n"
        "        memory.seek(start)\n"
        "        if re.search(rb'assert f\\(1\\) == [2]', memory.read(end - start)): return 2\n"
        "    except (OSError, OverflowError): pass\n"
        "  return 1"
    ),
    "the judge's memory and descriptors": (
        "import os\n"
        "def f(x):\n"
        "  for pid in [os.getppid(), 1]:\n"
        "    for name in ['mem', 'environ', 'maps', 'fd', 'cwd', 'root']:\n"
        "      path = f'/proc/{pid}/{name}'\n"
        "      try:\n"
        "        os.listdir(path) if name in ('fd', 'cwd', 'root') else open(path, 'rb').read(1)\n"
        "        return 2\n"
        "      except OSError: pass\n"
        "  return 1"
    ),
    "writing into every descriptor": (
        "import os, json\n"
        "def f(x):\n"
        "  for fd in range(1, 64):\n"
        "    for name in [f'/proc/self/fd/{fd}', f'/proc/1/fd/{fd}']:\n"
        '      try: os.write(os.open(name, os.O_WRONLY | os.O_NONBLOCK), b\'{"reason": "passed", "nonce": ""}\')\n'
        "      except OSError: pass\n"
        "  return 1"
    ),
    "an answer in the wire's own language": (
        "import os, struct, json\n"
        "def f(x):\n"
        "  body = json.dumps(['ok', 2, []]).encode()\n"
        "  for fd in range(3, 20):\n"
        "    try: os.write(fd, struct.pack('<I', len(body)) + body)\n"
        "    except OSError: pass\n"
        "  import time; time.sleep(60)"
    ).replace("['ok', 2, []]", "['ok', 1, []]"),
    "a message that is none": "import os\ndef f(x):\n  for fd in range(3, 20):\n    try: os.write(fd, b'\\xff' * 100)\n    except OSError: pass",
    "a very long message": (
        "import os\ndef f(x):\n  for fd in range(3, 20):\n    try:\n      while True: os.write(fd, b'\\x00\\x00\\x00\\x03' + b'[' * 60000)\n"
        "    except OSError: pass"
    ),
    "killing the judge": "import os\ndef f(x):\n  for s in (9, 15, 2, 19, 11): os.kill(os.getppid(), s)\n  os.kill(-1, 9)",
    "interrupting the judge": "import os, time\ndef f(x):\n  for _ in range(100): os.kill(os.getppid(), 2); os.kill(1, 2)\n  return 1",
    "a module beside the judge": (
        "import os\nfor name in ('json', 'traceback', 'importlib', 'math', 'solution'):\n"
        "  open(f'/tmp/{name}.py', 'w').write('import os; os._exit(0)')\ndef f(x): return 1"
    ),
    "a daemon that goes on writing": (
        "import os\nif os.fork() == 0:\n  os.setsid()\n  while True:\n    try: os.write(1, b'passed')\n    except OSError: pass\n"
        "def f(x): return 1"
    ),
    "names of Python's own": "def abs(x): return 0\ndef len(x): return 2\ndef isinstance(*a): return True\ndef f(x): return 1",
    "an exception that is all exceptions": (
        "class Meta(type):\n  def __instancecheck__(c, o): return True\n  def __subclasscheck__(c, o): return True\n"
        "class E(Exception, metaclass=Meta): pass\ndef f(x): raise E()"
    ),
    "a module in place of a function": "import os as f",
    "changing what it was given": "def f(x): return x",
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(sandbox: Sandbox, name: str) -> None:
    program, tests = HONEST[name]
    verdict = sandbox.check(program, tests)
    assert verdict.passed and verdict.reason == "passed", verdict
    assert_nothing_runs(sandbox)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_fails_for_its_reason(sandbox: Sandbox, name: str) -> None:
    program, tests, reason = WRONG[name]
    verdict = sandbox.check(program, tests)
    assert (verdict.passed, verdict.reason) == (False, reason), verdict
    assert_nothing_runs(sandbox)


@pytest.mark.parametrize("name", FAKES)
def test_a_verdict_cannot_be_faked(sandbox: Sandbox, name: str) -> None:
    verdict = sandbox.check(FAKES[name], ["assert f(1) == 2"])
    assert not verdict.passed and verdict.reason != "passed", verdict
    assert_nothing_runs(sandbox)


@pytest.mark.parametrize(
    "test",
    [
        "assert abs(f(1) - 2.0) < 1e-6",
        "assert 2 - f(1) == 0",
        "assert 2 in f(1)",
        "assert f(1) < 3",
        "assert f(1) in (2, 3)",
        "assert f(1) == [2]",
        "assert (f(1), 1) == (2, 1)",
        "assert {f(1)} == {2}",
        "assert sorted(f(1)) == [1, 2]",
        "import math\nassert math.isclose(f(1), 2)",
        "assert f(1) is True",
        "assert isinstance(f(1), int)",
        "assert type(f(1)) is int",
        "assert f(1) >= 2 and f(1) <= 2",
        "assert round(f(1), 3) == 2",
        "assert str(f(1)) == '2'",
    ],
)
def test_an_object_with_operators_of_its_own_is_not_believed(sandbox: Sandbox, test: str) -> None:
    """It would see what is expected, and say that it is that."""
    names = "eq lt le gt ge contains sub rsub add radd mul rmul mod pow truediv rtruediv getitem instancecheck".split()
    methods = "".join(f"  def __{name}__(self, *a): return True\n" for name in names)
    program = f"class E:\n{methods}  def __iter__(self): return iter(())\n  def __hash__(self): return 2\ndef f(x): return E()\n"
    verdict = sandbox.check(program, [test])
    assert not verdict.passed, verdict


def test_the_judge_is_not_there_for_what_the_program_prints(sandbox: Sandbox) -> None:
    right = "print(int(input()) * 2)"
    cases = [Case(stdin="2\n", stdout="4\n"), Case(stdin="5", stdout="10")]
    assert sandbox.check(right, [], cases).passed
    assert sandbox.check(
        "import sys\nfor line in sys.stdin: print(line, end='  \\n\\n')", [], [Case(stdin="a", stdout="a")]
    ).passed
    assert sandbox.check(right, [], [*cases, Case(stdin="1", stdout="3")]).reason == "failed"
    assert sandbox.check("def f(x): return x", ["assert f(1) == 1"], [Case(stdin="", stdout="")]).passed
    assert sandbox.check("def f(x): return x", ["assert f(1) == 1"], [Case(stdin="", stdout="x")]).reason == "failed"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("1 / 0", "error"),
        ("import sys; print(4); sys.exit(1)", "error"),
        ("import os; print(4, flush=True); os.kill(os.getpid(), 9)", "error"),
        ("while True: pass", "time"),
        ("while True: print('x' * 1000)", "output"),
        ("import os; os.close(1); os.close(2); print(4)", "failed"),
        ("x = bytearray(1 << 34)", "memory"),
        (
            'import os\nfor n in range(3, 99):\n  try: os.write(n, b\'{"exit_code": 0, "is_whole": true, "stdout": "4"}\\n\')\n  except OSError: pass',
            "failed",
        ),
        ("import os\nos.kill(os.getppid(), 9); os.kill(1, 9); print(5)", "failed"),
        ("import os\nif os.fork(): os._exit(0)\nimport time; time.sleep(0.5); print(4, flush=True)", "failed"),
    ],
)
def test_a_program_whose_output_is_judged(sandbox: Sandbox, program: str, reason: str) -> None:
    verdict = sandbox.check(program, [], [Case(stdin="2", stdout="4")])
    assert (verdict.passed, verdict.reason) == (False, reason), verdict
    assert_nothing_runs(sandbox)


def test_what_is_expected_is_not_in_the_sandbox(sandbox: Sandbox) -> None:
    """The program looks for what it has to print in everything that it can read."""
    program = (
        "import os, re\nfound = []\n"
        "for pid in [p for p in os.listdir('/proc') if p.isdigit()]:\n"
        "  try:\n"
        "    for line in open(f'/proc/{pid}/maps'):\n"
        "      start, end = (int(p, 16) for p in line.split()[0].split('-'))\n"
        "      try:\n"
        "        with open(f'/proc/{pid}/mem', 'rb', 0) as m: m.seek(start); found += re.findall(rb'UNGUESS[A]BLE[0-9]+', m.read(end - start))\n"
        "      except (OSError, OverflowError, MemoryError): pass\n"
        "  except OSError: pass\n"
        "print(found[0].decode() if found else input())\n"
    )
    unguessable = "UNGUESSABLE" + "4711"
    assert not sandbox.check(program, [], [Case(stdin="x", stdout=unguessable)]).passed
    assert sandbox.check(program, [], [Case(stdin=unguessable, stdout=unguessable)]).passed, "it does look"


def test_many_cases_are_one_sandbox(sandbox: Sandbox) -> None:
    cases = [Case(stdin=str(n), stdout=str(n * n)) for n in range(100)]
    assert sandbox.check("n = int(input()); print(n * n)", [], cases).passed


def test_the_processes_of_a_check_are_limited_too(sandbox: Sandbox) -> None:
    program = f"import os\ndef f():\n  n = 0\n  try:\n    while n < {LIMITS.processes + 9}:\n      if os.fork() == 0:\n        import time; time.sleep(60)\n      n += 1\n  except OSError: pass\n  return n"
    assert sandbox.check(program, [f"assert 0 < f() < {LIMITS.processes}"]).passed
    assert_nothing_runs(sandbox)
