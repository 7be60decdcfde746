"""Programs for the judge: honest ones, wrong ones, and some that pretend."""

# name: (program, tests). Whatever tests may sensibly do with a program, an honest one has to pass them.
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

# What right programs return, raise and change, and how tests may look at it.
RIGHT: dict[str, tuple[str, list[str]]] = {
    "datetimes": (
        """
import datetime as d
def f(): return d.datetime(2020,1,1,tzinfo=d.timezone.utc)
def g(): return d.time(1,2,3,4,tzinfo=d.timezone(d.timedelta(hours=1),'X')), d.timezone.utc
""",
        [
            "import datetime\nassert f() == datetime.datetime(2020,1,1,tzinfo=datetime.timezone.utc) and f() != datetime.datetime(2020,1,1)\nassert g()[0] == datetime.time(1,2,3,4,tzinfo=datetime.timezone(datetime.timedelta(hours=1)))\nassert f().tzinfo is datetime.timezone.utc or f().tzinfo == datetime.timezone.utc"
        ],
    ),
    "errors": (
        """
class App(Exception):
  code = 5
class Short(App):
  def __init__(self, need, have):
    super().__init__(f'need {need}')
    self.need, self.have = need, have
  def missing(self): return self.need - self.have
def f(x): raise Short(x, 1)
def g(): b'\\xff'.decode()
def h():
  try: 1/0
  except ZeroDivisionError as e: raise ValueError('a', 2) from e
def k(): return {}['z']
def o(): open('/none')
""",
        [
            """
try: f(3)
except App as e:
  assert e.need == 3 and e.have == 1 and e.args == ('need 3',) and str(e) == 'need 3' and e.missing() == 2 and e.code == 5
  assert type(e) is Short and isinstance(e, Short) and type(e).__name__ == 'Short'
else: assert False
try: g()
except UnicodeDecodeError as e: assert e.start == 0 and e.encoding == 'utf-8'
else: assert False
try: h()
except ValueError as e: assert e.args == ('a', 2) and isinstance(e.__cause__, ZeroDivisionError)
try: k()
except KeyError as e: assert e.args == ('z',)
try: o()
except FileNotFoundError as e: assert e.errno == 2 and e.filename == '/none'
assert issubclass(Short, App) and Short(5, 2).missing() == 3
try: raise Short(1,1)
except App: pass
"""
        ],
    ),
    "with": (
        """
class C:
  log = []
  def __enter__(self): self.log.append('in'); return self
  def __exit__(self, t, v, tb): self.log.append(t.__name__ if t else None); return t is ValueError
""",
        [
            "with C() as c: assert c.log == ['in']\nassert C.log == ['in', None]\nwith C(): raise ValueError('x')\nassert C.log[-1] == 'ValueError'\ntry:\n  with C(): raise KeyError(1)\nexcept KeyError: pass\nelse: assert False\n"
        ],
    ),
    "identity": (
        "X=[1]\ndef f(): return X\ndef g(x): return x\ndef h(): return len(X)\nclass S:\n  def __init__(s, it): s.it = it\n  def n(s): return len(s.it)\n  def add(s): s.it.append(0)",
        [
            "assert f() is f()\na=f()\na.append(2)\nassert h() == 2\nxs=[[1],[2]]\nassert g(xs) is xs and g(xs)[0] is xs[0]\ns=S(xs)\nxs.append(1)\nassert s.n()==3\ns.add()\nassert xs == [[1],[2],1,0]\nassert s.it is xs\ns.it.clear()\nassert s.n()==0 and xs==[]"
        ],
    ),
    "namedtuple": (
        """
from collections import namedtuple, OrderedDict, defaultdict, Counter, deque
from typing import NamedTuple
from dataclasses import dataclass
import enum
P = namedtuple('P', 'x y')
class Q(NamedTuple):
  a: int
  b: int = 2
  def s(self): return self.a + self.b
@dataclass
class D:
  x: int
  y: list
class E(enum.Enum):
  A = 1
  B = 2
class I(enum.IntEnum):
  A = 1
def p(): return P(1,2)
def d(): return D(1,[2])
def c(): return Counter('aab'), defaultdict(list, {1:[2]}), OrderedDict([(1,2),(3,4)]), deque([1,2,3],maxlen=2)
def e(): return E.A
class St(list):
  def push(self, x): self.append(x); return self
  def __eq__(self, o): return True
  __hash__ = None
class MyInt(int):
  def __eq__(self, o): return True
  __hash__ = int.__hash__
""",
        [
            """
assert p() == (1,2) and p().x == 1 and p()._fields == ('x','y') and p()._asdict() == {'x':1,'y':2} and p()._replace(x=5) == (5,2)
assert Q(1).s() == 3 and Q(1) == (1,2) and repr(Q(1)) == 'Q(a=1, b=2)' and isinstance(Q(1), tuple) and isinstance(Q(1), Q)
assert d() == D(1,[2]) and d().y == [2] and repr(d()) == 'D(x=1, y=[2])' and d() != D(2,[2])
import dataclasses
assert c()[0].most_common(1) == [('a',2)] and c()[1][5] == [] and list(c()[2]) == [1,3] and c()[3].maxlen == 2
assert e() == E.A and e() is E.A and E.A.value == 1 and E['B'].name == 'B' and E(2) is E.B and len(E) == 2 and [m.name for m in E] == ['A','B'] and E.A in E and E.A != E.B
assert I.A == 1 and I.A.name == 'A' and isinstance(I.A, I)
s = St(); s.push(1).push(2)
assert s == [1,2] and len(s) == 2 and not (s == [1])
s.append(4)
assert s.pop() == 4 and not (MyInt(3) == 4) and MyInt(3) == 3
x = {E.A: 1}
assert x[E.A] == 1 and {D}.pop() is D
""",
            "assert vars(d()) == {'x': 1, 'y': [2]} and hasattr(d(), 'x') and not hasattr(d(), 'z') and not callable(d()) and callable(D)",
        ],
    ),
    "callback errors": (
        """
def safe(f):
  try: return f()
  except ValueError as e: return ('caught', str(e))
import functools, inspect
def deco(f):
  @functools.wraps(f)
  def w(*a, **k):
    w.n = getattr(w, 'n', 0) + 1
    return f(*a, **k)
  return w
def curry(f):
  n = len(inspect.signature(f).parameters)
  def c(*a): return f(*a) if len(a) >= n else lambda *b: c(*a, *b)
  return c
def arg(f): return f.__code__.co_argcount
def through(f): return f()
""",
        [
            """
def bad(): raise ValueError('no')
assert safe(bad) == ('caught', 'no')
@deco
def add(a, b=2, *, k=3):
  'doc'
  return a + b + k
assert add(1) == 6 and add(1, 1, k=1) == 3 and add.__name__ == 'add' and add.__doc__ == 'doc' and add.n == 2
assert curry(lambda a, b, c: a+b+c)(1)(2)(3) == 6 and arg(lambda a, b: 0) == 2
class Mine(Exception): pass
def g(): raise Mine('z')
try: through(g)
except Mine as e: assert e.args == ('z',)
else: assert False
"""
        ],
    ),
    "test classes": (
        """
class Shape:
  def area(self): raise NotImplementedError
  def __init__(self, n): self.n = n
  def twice(self): return 2 * self.area()
def total(xs): return sum(x.area() for x in xs)
def walk(node):
  out = []
  while node: out.append(node.val); node = node.next
  return out
def rev(node):
  p = None
  while node: node.next, p, node = p, node, node.next
  return p
def kind(x): return isinstance(x, int)
def take(it, n): return [next(it) for _ in range(n)]
""",
        [
            """
class Sq(Shape):
  def __init__(self, s): super().__init__('sq'); self.s = s
  def area(self): return self.s ** 2
q = Sq(3)
assert q.area() == 9 and q.n == 'sq' and q.twice() == 18 and isinstance(q, Shape) and total([q, Sq(1)]) == 10
class Node:
  def __init__(self, val, next=None): self.val, self.next = val, next
l = Node(1, Node(2, Node(3)))
assert walk(l) == [1,2,3]
r = rev(l)
assert r.val == 3 and r.next.val == 2 and isinstance(r, Node)
assert not kind(l)
import itertools
assert take(itertools.count(), 3) == [0,1,2]
"""
        ],
    ),
    "async": (
        """
import asyncio
async def f(x): await asyncio.sleep(0.001); return x * 2
async def g(n):
  for i in range(n): yield i
class A:
  async def __aenter__(self): return 5
  async def __aexit__(self, *a): return False
""",
        [
            """
import asyncio
assert asyncio.run(f(2)) == 4
async def main():
  assert await asyncio.gather(f(1), f(2)) == [2, 4]
  assert [x async for x in g(3)] == [0,1,2]
  async with A() as a: assert a == 5
  return 1
assert asyncio.run(main()) == 1
assert asyncio.iscoroutine(f(1))
"""
        ],
    ),
    "generators": (
        """
def f():
  got = yield 1
  while True:
    try: got = yield got
    except ValueError: got = 'v'
def one(): yield 1; return 7
class Count:
  def __init__(self): self.n = 0
  def __iter__(self): return self
  def __next__(self):
    self.n += 1
    if self.n > 3: raise StopIteration
    return self.n
""",
        [
            """
g = f()
assert next(g) == 1 and g.send(5) == 5 and g.throw(ValueError) == 'v'
g.close()
try: next(g)
except StopIteration: pass
else: assert False
o = one(); next(o)
try: next(o)
except StopIteration as e: assert e.value == 7
else: assert False
assert list(Count()) == [1,2,3]
import types, inspect
assert isinstance(one(), types.GeneratorType) and inspect.isgenerator(one()) and inspect.isfunction(one)
"""
        ],
    ),
    "operators": (
        """
class V:
  def __init__(s, x): s.x = x
  def __mul__(s, k): return V(s.x * k)
  __rmul__ = __mul__
  def __add__(s, o): return V(s.x + o.x)
  def __eq__(s, o): return isinstance(o, V) and s.x == o.x
  def __hash__(s): return hash(s.x)
  def __lt__(s, o): return s.x < o.x
  def __contains__(s, y): return y == s.x
  def __format__(s, spec): return format(s.x, spec)
  def __getitem__(s, i): return (s.x, i)
""",
        [
            """
assert (V(2) * 3).x == 6 and 3 * V(2) == V(6) and sum([V(1), V(2)], V(0)) == V(3)
assert 3 in V(3) and 4 not in V(3) and f'{V(2):.2f}' == '2.00' and len({V(1), V(1), V(2)}) == 2
assert sorted([V(2), V(1)])[0] == V(1) and V(1)[1:2] == (1, slice(1,2)) and min(V(3), V(2)).x == 2
import copy
v = V([1]); w = copy.deepcopy(v); w.x.append(2)
assert v.x == [1] and w.x == [1,2]
"""
        ],
    ),
}

RIGHT_NUMPY: dict[str, tuple[str, list[str]]] = {
    "numpy": (
        """
import numpy as np
def f(): return np.zeros((0,3)), np.float32(1.5), np.array([(1,2.0)], dtype=[('a','<i4'),('b','<f8')]), np.array([1,'a'],dtype=object), np.bool_(True)
def g(a): a[0] = 7
def h(): return np.array(['2020-01-01'],dtype='datetime64[D]'), np.float64(2.5), np.array(3)
""",
        [
            """
import numpy as np
a,b,c,d,e = f()
assert a.shape == (0,3) and b == 1.5 and b.dtype == np.float32 and isinstance(b, np.float32) and c['a'][0] == 1 and d.tolist() == [1,'a'] and e
x = np.zeros(3); g(x)
assert x[0] == 7
assert h()[0][0] == np.datetime64('2020-01-01') and isinstance(h()[1], float) and h()[2].shape == ()
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

# Each claims to satisfy `assert f(1) == 2`, and does not compute it.
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
    ("import os; os.close(1); os.close(2); print(4)", "failed"),
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

# f(most) starts as many processes as it can, and says how many.
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
