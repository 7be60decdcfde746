"""Programs for the judge: honest ones, wrong ones, and some that pretend to be right."""

# name: (program, tests). An honest program has to pass any sensible tests.
HONEST: dict[str, tuple[str, list[str]]] = {
    "numbers": (
        "def f(x): return x * x",
        ["assert f(3) == 9", "assert f(-1.5) == 2.25", "assert f(2j) == -4"],
    ),
    "large integers": (
        "def f(n): return 7 ** n",
        ["assert f(3000) == 7 ** 3000", "assert f(-1) == 7 ** -1"],
    ),
    "text and bytes": (
        "def f(x): return x + x",
        ["assert f('é\\ud800\\n') == 'é\\ud800\\né\\ud800\\n'", "assert f(b'\\xff') == b'\\xff\\xff'"],
    ),
    "nested containers": (
        "def f(x): return {'a': [x, (x,), {x}], 1: None, (1, 2): frozenset([x])}",
        ["assert f(1) == {'a': [1, (1,), {1}], 1: None, (1, 2): frozenset([1])}", "assert f(1)[1] is None"],
    ),
    "types of the standard library": (
        """
from fractions import Fraction
from decimal import Decimal
from collections import deque, Counter
import datetime
def f(): return Fraction(1, 3), Decimal('0.1'), deque([1]), datetime.date(2020, 2, 29)
def g(): return Counter('aab'), datetime.datetime(2020, 1, 1, 2, 3, 4, 5), datetime.timedelta(1), range(3)
""",
        [
            """
from fractions import Fraction
from decimal import Decimal
from collections import deque
import datetime
assert f() == (Fraction(1, 3), Decimal('0.1'), deque([1]), datetime.date(2020, 2, 29))
""",
            """
assert g() == ({'a': 2, 'b': 1}, datetime.datetime(2020, 1, 1, 2, 3, 4, 5), datetime.timedelta(1), range(3))
""",
        ],
    ),
    "floats": (
        "def f(x): return x / 3",
        [
            "assert abs(f(1) - 0.3333) < 1e-3",
            """
import math
assert math.isclose(f(9), 3)
""",
            "assert math.isnan(f(math.nan))",
        ],
    ),
    "arguments changed in place": (
        """
def sort(x): x.sort()
def fill(d, *, s): d['k'] = s.pop(); s.add(9)
""",
        [
            """
a = [3, 1, 2]
sort(a)
assert a == [1, 2, 3]
""",
            """
d, s = {}, {1}
fill(d, s=s)
assert d == {'k': 1} and s == {9}
""",
        ],
    ),
    "functions as arguments": (
        """
def f(g, x): return [g(y, k=2) for y in x]
def rec(g, n): return g(n)
def plus(n): return n + 1
""",
        [
            "assert f(lambda y, k: y * k, [1, 2]) == [2, 4]",
            "assert rec(lambda n: plus(n) * 2, 3) == 8",
            "assert list(map(plus, [1, 2])) == [2, 3]",
            "assert sorted([3, 1, 2], key=plus) == [1, 2, 3]",
        ],
    ),
    "classes": (
        """
class Stack:
  size = 0
  def __init__(self): self.items = []
  def push(self, x): self.items.append(x); return self
  def __len__(self): return len(self.items)
  def __getitem__(self, i): return self.items[i]
  def __iter__(self): return iter(self.items)
class Point:
  def __init__(self, x): self.x = x
  def __eq__(self, other): return self.x == other.x
  def __add__(self, other): return Point(self.x + other.x)
  def __str__(self): return f'P{self.x}'
""",
        [
            """
s = Stack()
s.push(1).push(2)
assert len(s) == 2 and s[0] == 1 and list(s) == [1, 2] and s.items == [1, 2]
""",
            """
assert isinstance(s, Stack) and Stack.size == 0
s.items = [5]
assert s[0] == 5 and not hasattr(s, 'x')
""",
            """
assert Point(1) + Point(2) == Point(3) and Point(1) != Point(2) and str(Point(7)) == 'P7'
""",
        ],
    ),
    "generators": (
        """
def f(n):
  for i in range(n): yield i * i
""",
        [
            "assert list(f(4)) == [0, 1, 4, 9]",
            """
g = f(2)
assert next(g) == 0 and next(g) == 1 and next(g, 5) == 5
""",
        ],
    ),
    "exceptions": (
        """
class Odd(ValueError): pass
def f(x):
  if x % 2: raise Odd(f'odd {x}')
  return [][x]
""",
        [
            """
try:
  f(1)
except Odd as error:
  assert str(error) == 'odd 1'
else:
  assert False
""",
            """
try:
  f(1)
except ValueError:
  pass
else:
  assert False
""",
            """
try:
  f(2)
except IndexError:
  pass
else:
  assert False
""",
        ],
    ),
    "names and modules of the program": (
        """
import math
import json as j
LIMIT = [1, 2]
def f(): return math.pi
""",
        [
            "assert f() == math.pi and LIMIT == [1, 2]",
            """
from solution import f as g
import solution
assert g() == solution.f()
""",
        ],
    ),
    "a test in a function": (
        "def add(a, b): return a + b",
        [
            """
def check(candidate):
  assert candidate(1, 2) == 3
  assert [candidate(i, 1) for i in range(3)] == [1, 2, 3]
check(add)
"""
        ],
    ),
    "output, and the end of the main program": (
        """
import sys
print('hello' * 100)
def f(): print('x'); return 1
if __name__ == '__main__': input()
sys.exit(0)
""",
        ["assert f() == 1"],
    ),
    "tests that say what they think": (
        "def f(): return 2",
        [
            """
assert f() == 2, 'not two'
print('fine')
"""
        ],
    ),
}

# name: (program, tests, reason)
WRONG: dict[str, tuple[str, list[str], str]] = {
    "a wrong value": ("def f(x): return x", ["assert f(1) == 1", "assert f(1) == 2"], "failed"),
    "an exception": ("def f(x): return 1 / 0", ["assert f(1) == 1"], "failed"),
    "no such function": ("def g(x): return 1", ["assert f(1) == 1"], "failed"),
    "not Python": ("def f(x) return 1", ["assert f(1) == 1"], "error"),
    "an exception at the start": (
        """
raise ValueError('no')
def f(): return 1
""",
        ["assert f() == 1"],
        "error",
    ),
    "an exit code at the start": (
        """
def f(): return 1
raise SystemExit(3)
""",
        ["assert f() == 1"],
        "error",
    ),
    "an endless loop": (
        """
def f():
  while True: pass
""",
        ["assert f() == 1"],
        "time",
    ),
    "an endless loop at the start": ("while True: pass", ["assert True"], "time"),
    "too much memory": ("def f(): return len(bytearray(1 << 34))", ["assert f() == 1 << 34"], "memory"),
    "too much output": (
        """
def f():
  while True: print('x' * 1000)
""",
        ["assert f() == 1"],
        "output",
    ),
    "too deep": ("def f(): return f()", ["assert f() == 1"], "failed"),
}

# Each pretends to satisfy `assert f(1) == 2`, and does not compute it.
FAKES: dict[str, str] = {
    "printing that it passed": """
print('passed')
print('{"reason": "passed"}')
def f(x): return 1
""",
    "exit code 0 at the start": """
import os
os._exit(0)
""",
    "exit code 0 in the call": """
import os
def f(x): os._exit(0)
""",
    "sys.exit in the call": """
import sys
def f(x): sys.exit(0)
""",
    "an object that equals everything": """
class E:
  def __eq__(s, o): return True
  def __ne__(s, o): return False
def f(x): return E()
""",
    "an integer that equals everything": """
class E(int):
  def __eq__(s, o): return True
  __hash__ = int.__hash__
def f(x): return E(1)
""",
    "an object that is everywhere": """
class E:
  def __getattr__(s, n): return s
  def __call__(s, *a): return True
  def __bool__(s): return True
f = E()
""",
    "builtins that are not what they were": """
import builtins
builtins.AssertionError = type('A', (Exception,), {})
builtins.compile = lambda *a, **k: 'pass'
builtins.exec = lambda *a, **k: None
builtins.isinstance = lambda *a: True
def f(x): return 1
""",
    "modules that are not what they were": """
import json, os, struct, sys
json.dumps = lambda *a, **k: '["ok", 2, []]'
os._exit = lambda *a: None
struct.pack = lambda *a: b''
def f(x): return 1
""",
    "a tracing function": """
import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
def f(x): return 1
""",
    "an exit handler": """
import atexit, os
atexit.register(lambda: os._exit(0))
def f(x): raise SystemExit(0)
""",
    "its own frames and the garbage collector": """
import gc, sys
def f(x):
  for o in gc.get_objects():
    if isinstance(o, dict) and 'tests' in o: return 2
  frame = sys._getframe()
  while frame:
    if 'tests' in frame.f_locals or 'work' in frame.f_locals: return 2
    frame = frame.f_back
  return 1
""",
    "the tests in its memory": r"""
import re
def f(x):
  for line in open('/proc/self/maps'):
    start, end = (int(p, 16) for p in line.split()[0].split('-'))
    try:
      with open('/proc/self/mem', 'rb', 0) as memory:
        memory.seek(start)
        if re.search(rb'assert f\(1\) == [2]', memory.read(end - start)): return 2
    except (OSError, OverflowError): pass
  return 1
""",
    "the judge's memory and descriptors": """
import os
def f(x):
  for pid in [os.getppid(), 1]:
    for name in ['mem', 'environ', 'maps', 'fd', 'cwd', 'root']:
      path = f'/proc/{pid}/{name}'
      try:
        os.listdir(path) if name in ('fd', 'cwd', 'root') else open(path, 'rb').read(1)
        return 2
      except OSError: pass
  return 1
""",
    "inherited descriptors": """
import os
def f(x):
    for fd in range(3, 64):
        try:
            if b'assert f' in os.pread(fd, 100_000, 0): return 2
        except OSError: pass
    return 1
""",
    "writing into every descriptor": """
import os, json
def f(x):
  for fd in range(1, 64):
    for name in [f'/proc/self/fd/{fd}', f'/proc/1/fd/{fd}']:
      try: os.write(os.open(name, os.O_WRONLY | os.O_NONBLOCK), b'{"reason": "passed", "nonce": ""}')
      except OSError: pass
  return 1
""",
    "an answer in the wire's own language": """
import os, struct, json
def f(x):
  body = json.dumps(['ok', 1, []]).encode()
  for fd in range(3, 20):
    try: os.write(fd, struct.pack('<I', len(body)) + body)
    except OSError: pass
  import time; time.sleep(60)
""",
    "a message that is none": r"""
import os
def f(x):
  for fd in range(3, 20):
    try: os.write(fd, b'\xff' * 100)
    except OSError: pass
""",
    "a very long message": r"""
import os
def f(x):
  for fd in range(3, 20):
    try:
      while True: os.write(fd, b'\x00\x00\x00\x03' + b'[' * 60000)
    except OSError: pass
""",
    "killing the judge": """
import os
def f(x):
  for s in (9, 15, 2, 19, 11): os.kill(os.getppid(), s)
  os.kill(-1, 9)
""",
    "interrupting the judge": """
import os, time
def f(x):
  for _ in range(100): os.kill(os.getppid(), 2); os.kill(1, 2)
  return 1
""",
    "a module beside the judge": """
import os
for name in ('json', 'traceback', 'importlib', 'math', 'solution'):
  open(f'/tmp/{name}.py', 'w').write('import os; os._exit(0)')
def f(x): return 1
""",
    "a daemon that goes on writing": """
import os
if os.fork() == 0:
  os.setsid()
  while True:
    try: os.write(1, b'passed')
    except OSError: pass
def f(x): return 1
""",
    "names of Python's own": """
def abs(x): return 0
def len(x): return 2
def isinstance(*a): return True
def f(x): return 1
""",
    "an exception that is all exceptions": """
class Meta(type):
  def __instancecheck__(c, o): return True
  def __subclasscheck__(c, o): return True
class E(Exception, metaclass=Meta): pass
def f(x): raise E()
""",
    "a module in place of a function": "import os as f",
    "changing what it was given": "def f(x): return x",
}

# (program, reason): with the input 2 it would have to print 4.
OUTPUTS: list[tuple[str, str]] = [
    ("1 / 0", "error"),
    ("import sys; print(4); sys.exit(1)", "error"),
    ("import os; print(4, flush=True); os.kill(os.getpid(), 9)", "error"),
    ("while True: pass", "time"),
    ("while True: print('x' * 1000)", "output"),
    ("import os; os.close(1); os.close(2); print(4)", "error"),  # Python's exit code is then 120
    ("import atexit, os\nprint(4, flush=True)\natexit.register(os._exit, 3)", "error"),
    ("import threading\nprint(4)\nthreading.Timer(0.3, print, ['more']).start()", "failed"),
    ("print(4)\nexit('no')", "error"),
    ("x = bytearray(1 << 34)", "memory"),
    (
        r"""
import os
for n in range(3, 99):
  try: os.write(n, b'{"exit_code": 0, "is_whole": true, "stdout": "4"}\n')
  except OSError: pass
""",
        "failed",
    ),
    (
        """
import os
os.kill(os.getppid(), 9); os.kill(1, 9); print(5)
""",
        "failed",
    ),
    (
        """
import os
if os.fork(): os._exit(0)
import time; time.sleep(0.5); print(4, flush=True)
""",
        "failed",
    ),
]

# Right programs: each prints a number that is one larger than its input, for the inputs 1, 2 and 3.
PRINTING: dict[str, str] = {
    "its streams by their paths": (
        "print(int(open('/dev/stdin').read()) + 1, file=open('/dev/stdout', 'w')); open('/dev/stderr', 'w').write('x')"
    ),
    "a thread that is not joined": """
import threading, time
def main():
    time.sleep(0.1)
    print(int(input()) + 1)
threading.Thread(target=main).start()
""",
    "output in an exit handler": """
import atexit, io, sys
out, sys.stdout = sys.stdout, io.StringIO()
atexit.register(lambda: out.write(sys.stdout.getvalue()))
print(int(input()) + 1)
""",
    "output when an object is deleted": """
class Last:
    def __del__(self): print(x + 1)
x = int(input())
last = Last()
""",
    "exit": "print(int(input()) + 1)\nexit()",
    "quit": "print(int(input()) + 1)\nquit(0)",
    "a pool of processes": """
import multiprocessing
def add(x): return x + 1
if __name__ == '__main__':
    with multiprocessing.Pool(2) as pool: print(*pool.map(add, [int(input())]))
""",
    "a file and a folder that must not exist": """
import os
os.mkdir('made')
open('made/new', 'x').close()
print(int(input()) + 1)
""",
    "everything that a case leaves is gone in the next one": """
import os, time
assert os.listdir('/tmp') == [] and sum(name.isdigit() for name in os.listdir('/proc')) <= 2
for _ in range(2000):
    os.mkdir('deep')
    os.chdir('deep')
os.symlink('/sandbox', '/tmp/link')
os.mkfifo('/tmp/pipe')
os.chmod('/tmp/deep', 0)
os.chmod('/tmp', 0)
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 64)
    time.sleep(1000)
print(int(input()) + 1)
""",
    "no process and no space left": """
import os, time
try:
    with open('/tmp/file', 'wb', 0) as file:
        while True: file.write(bytes(1 << 20))
except OSError: pass
try:
    while True:
        if os.fork() == 0: time.sleep(1000)
except OSError: pass
print(int(input()) + 1)
""",
}

# Looks for what it has to print in everything that it can read.
SEARCHES = """
import os, re
found = []
for pid in [p for p in os.listdir('/proc') if p.isdigit()]:
  try:
    for line in open(f'/proc/{pid}/maps'):
      start, end = (int(p, 16) for p in line.split()[0].split('-'))
      try:
        with open(f'/proc/{pid}/mem', 'rb', 0) as m:
          m.seek(start)
          found += re.findall(rb'UNGUESS[A]BLE[0-9]+', m.read(end - start))
      except (OSError, OverflowError, MemoryError): pass
  except OSError: pass
print(found[0].decode() if found else input())
"""

# f(most) starts as many processes as it can, and returns how many.
FORKS = """
import os
def f(most):
  n = 0
  try:
    while n < most:
      if os.fork() == 0:
        import time; time.sleep(60)
      n += 1
  except OSError: pass
  return n
"""
