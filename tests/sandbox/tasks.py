"""A hundred small tasks, each with a right program and a wrong one.

A task is (name, right program, wrong program, checks): checks are tests as texts, or cases as (stdin, stdout).
"""

# ruff: noqa: E501
# A program and its tests are easier to read on one line each.

Task = tuple[str, str, str, list[str] | list[tuple[str, str]]]

FUNCTIONS: list[Task] = [
    ("add", "def f(a, b): return a + b", "def f(a, b): return a - b", ["assert f(1, 2) == 3", "assert f(0, 0) == 0"]),
    ("identity", "def f(x): return x", "def f(x): return None", ["assert f([]) == []\nassert f(3) == 3"]),
    ("absolute", "def f(x): return abs(x)", "def f(x): return x", ["assert f(-3) == 3 and f(2) == 2"]),
    (
        "check of a candidate",
        "def inc(x): return x + 1",
        "def inc(x): return x + 2",
        [
            "METADATA = {'author': 'x'}\ndef check(candidate):\n  assert candidate(1) == 2\n  assert True, 'fine'\n",
            "check(inc)",
        ],
    ),
    (
        "loop over cases",
        "def sq(x): return x * x",
        "def sq(x): return x + x",
        ["for x, want in [(1, 1), (2, 4), (3, 9)]:\n  assert sq(x) == want"],
    ),
    (
        "loop over zip",
        "def sq(n): return [i * i for i in range(n)]",
        "def sq(n): return [0]",
        ["for got, want in zip(sq(4), [0, 1, 4, 9]):\n  assert got == want"],
    ),
    (
        "all over zip",
        "def sq(n): return [i * i for i in range(n)]",
        "def sq(n): return [0, 1, 4]",
        ["assert all(got == want for got, want in zip(sq(4), [0, 1, 4, 9]))"],
    ),
    (
        "generator against a list",
        "def fib():\n  a, b = 0, 1\n  while True:\n    yield a\n    a, b = b, a + b",
        "def fib(): return iter([0, 1])",
        ["for got, want in zip(fib(), [0, 1, 1, 2, 3]):\n  assert got == want"],
    ),
    (
        "a bounded generator",
        "def naturals():\n  n = 0\n  while True:\n    yield n\n    n += 1",
        "def naturals(): yield 1",
        ["for want, got in zip(range(5), naturals()):\n  assert got == want"],
    ),
    ("empty generator", "def f(n): return iter(range(n))", "def f(n): return iter([1])", ["assert list(f(0)) == []"]),
    (
        "expected exception",
        "def f(x):\n  if x < 0: raise ValueError('negative')\n  return x",
        "def f(x): return x",
        ["try:\n  f(-1)\nexcept ValueError:\n  pass\nelse:\n  assert False"],
    ),
    (
        "expected exception, broadly caught",
        "def f(x):\n  if x < 0: raise ValueError('negative')\n  return x",
        "def f(x): return x",
        ["try:\n  f(-1)\n  assert False\nexcept Exception:\n  pass"],
    ),
    (
        "text of an exception",
        "def f(x): raise ValueError('negative')",
        "def f(x): raise ValueError('other')",
        ["try:\n  f(-1)\n  assert False\nexcept ValueError as error:\n  assert str(error) == 'negative'"],
    ),
    (
        "attributes of an exception",
        "class Short(Exception):\n  def __init__(self, need, have):\n    super().__init__(f'need {need}')\n"
        "    self.need, self.have = need, have\n  def missing(self): return self.need - self.have\n"
        "def pay(x): raise Short(x, 1)",
        "class Short(Exception): pass\ndef pay(x): raise Short(x, 1)",
        [
            "try:\n  pay(3)\n  assert False\nexcept Short as e:\n  assert e.need == 3 and e.args == ('need 3',)\n"
            "  assert e.missing() == 2 and type(e) is Short"
        ],
    ),
    (
        "hierarchy of exceptions",
        "class App(Exception): code = 5\nclass Lost(App): pass\ndef f(): raise Lost('x')",
        "class App(Exception): code = 5\nclass Lost(Exception): pass\ndef f(): raise Lost('x')",
        ["try:\n  f()\n  assert False\nexcept App as e:\n  assert e.code == 5 and isinstance(e, Lost)"],
    ),
    (
        "undecodable bytes",
        "def f(b): return b.decode()",
        "def f(b): return b.decode('latin-1')",
        [
            "try:\n  f(b'\\xff')\n  assert False\nexcept UnicodeDecodeError as e:\n  assert e.start == 0 and e.encoding == 'utf-8'"
        ],
    ),
    (
        "cause of an exception",
        "def f():\n  try: 1 / 0\n  except ZeroDivisionError as e: raise ValueError('a', 2) from e",
        "def f(): raise ValueError('a', 2)",
        [
            "try:\n  f()\nexcept ValueError as e:\n  assert e.args == ('a', 2)\n  assert isinstance(e.__cause__, ZeroDivisionError)"
        ],
    ),
    (
        "missing file",
        "def f(p): return open(p).read()",
        "def f(p): raise FileNotFoundError(p)",
        [
            "try:\n  f('/none')\n  assert False\nexcept FileNotFoundError as e:\n  assert e.errno == 2 and e.filename == '/none'"
        ],
    ),
    (
        "exit code",
        "import sys\ndef f(): sys.exit(2)",
        "import sys\ndef f(): sys.exit(1)",
        ["try:\n  f()\nexcept SystemExit as e:\n  assert e.code == 2\nelse:\n  assert False"],
    ),
    (
        "an assertion of the program's",
        "def f(x):\n  assert x > 0, 'positive'\n  return x",
        "def f(x): return x",
        ["try:\n  f(-1)\nexcept AssertionError as e:\n  assert str(e) == 'positive'\nelse:\n  raise Exception('none')"],
    ),
    (
        "one of two answers",
        "def f(a, b): return b",
        "def f(a, b): return a + b",
        ["try:\n  assert f(1, 2) == 1\nexcept AssertionError:\n  assert f(1, 2) == 2"],
    ),
    (
        "a function that tells",
        "def f(x): return x",
        "def f(x): return -x",
        [
            "def run():\n  try:\n    assert f(1) == 1\n    return True\n  except Exception:\n    return False\nassert run()"
        ],
    ),
    (
        "a test that only prints its failure",
        "def f(x): return x",
        "def f(x): return -x",
        ["try:\n  assert f(1) == 1\nexcept AssertionError:\n  print('failed')"],
    ),
    ("in place", "def f(x): x.sort()", "def f(x): sorted(x)", ["x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"]),
    (
        "in place, by itself",
        "def f(x): x.sort()",
        "def f(x): x.clear()",
        ["x = [3, 1, 2]\nf(x)\nassert x == sorted(x)"],
    ),
    (
        "expectation from the argument",
        "def f(x): return sorted(x)",
        "def f(x):\n  x.clear()\n  return []",
        ["x = [3, 1, 2]\nassert f(x) == sorted(x)"],
    ),
    (
        "expectation from a dictionary",
        "def invert(d): return {v: k for k, v in d.items()}",
        "def invert(d):\n  d.clear()\n  return {}",
        ["d = {'a': 1}\ngot = invert(d)\nassert got == {v: k for k, v in d.items()}"],
    ),
    (
        "expectation from inner lists",
        "def total(rows): return sum(map(sum, rows))",
        "def total(rows):\n  for r in rows: r.clear()\n  return 0",
        ["rows = [[1, 2], [3]]\nassert total(rows) == sum(map(sum, rows))"],
    ),
    (
        "length and prefix",
        "def keep(x, v):\n  x[:] = [y for y in x if y != v]\n  return len(x)",
        "def keep(x, v): return len(x)",
        ["x = [3, 2, 2, 3]\nk = keep(x, 3)\nassert k == 2\nassert x[:k] == [2, 2]"],
    ),
    (
        "a grid in place",
        "def flip(g):\n  for r in g: r.reverse()",
        "def flip(g): g.reverse()",
        ["g = [[1, 2], [3, 4]]\nrow = g[0]\nflip(g)\nassert g == [[2, 1], [4, 3]] and row == [2, 1]"],
    ),
    (
        "an argument that is left alone",
        "def f(x): return x + [1]",
        "def f(x):\n  x.append(1)\n  return x",
        ["x = [0]\nassert f(x) == [0, 1]\nassert x == [0]"],
    ),
    (
        "the same list",
        "X = [1]\ndef f(): return X\ndef n(): return len(X)",
        "def f(): return [1]\ndef n(): return 1",
        ["assert f() is f()\na = f()\na.append(2)\nassert n() == 2"],
    ),
    (
        "an object that keeps its argument",
        "class S:\n  def __init__(self, x): self.x = x\n  def n(self): return len(self.x)",
        "class S:\n  def __init__(self, x): self.x = list(x)\n  def n(self): return len(self.x)",
        ["x = [1]\ns = S(x)\nx.append(2)\nassert s.n() == 2 and s.x is x"],
    ),
    (
        "primes by a property",
        "def primes(n): return [p for p in range(2, n) if all(p % d for d in range(2, p))]",
        "def primes(n): return []",
        ["assert all(p % d for p in primes(50) for d in range(2, p))"],
    ),
    (
        "order by a property",
        "def f(x): return sorted(x)",
        "def f(x): return []",
        ["got = f([3, 1, 2])\nfor i in range(1, len(got)):\n  assert got[i - 1] <= got[i]"],
    ),
    (
        "indices of the result",
        "def f(x): return [y * y for y in x]",
        "def f(x): return [1]",
        ["want = [1, 4]\ngot = f([1, 2])\nfor i in range(len(got)):\n  assert got[i] == want[i]"],
    ),
    (
        "no bad item",
        "def f(x): return [y for y in x if y > 2]",
        "def f(x): return []",
        ["assert not any(y <= 2 for y in f([1, 2, 3]))"],
    ),
    (
        "a branch",
        "def f(x): return x if x < 3 else 3",
        "def f(x): return None if x > 2 else x",
        ["assert f(2) == 2\nr = f(5)\nif r is not None:\n  assert r == 3"],
    ),
    ("a subset", "def f(x): return x[:1]", "def f(x): return []", ["assert set(f([1, 2])) <= {1, 2}"]),
    ("part of a text", "def f(s): return s[0]", "def f(s): return ''", ["assert f('ab') in 'abc'"]),
    ("truth", "def f(x): return x > 0", "def f(x): return 1", ["assert f(1) is True"]),
    ("not", "def f(x): return not x", "def f(x): return 1", ["assert not f(1)"]),
    ("None", "def f(x): pass", "def f(x): return 0", ["assert f(1) is None"]),
    ("an integer, not a truth value", "def f(): return 1", "def f(): return True", ["assert type(f()) is int"]),
    (
        "NaN",
        "def f(): return float('nan')",
        "def f(): return 0.0",
        ["import math\nassert math.isnan(f())\nassert f() != f()"],
    ),
    ("minus zero", "def f(): return -0.0", "def f(): return 0.0", ["import math\nassert math.copysign(1, f()) == -1"]),
    ("large integers", "def f(n): return 7 ** n", "def f(n): return 7 ** n + 1", ["assert f(500) == 7 ** 500"]),
    (
        "aware times",
        "import datetime as d\ndef f(): return d.datetime(2020, 1, 1, tzinfo=d.timezone.utc)",
        "import datetime as d\ndef f(): return d.datetime(2020, 1, 1)",
        ["import datetime as d\nassert f() == d.datetime(2020, 1, 1, tzinfo=d.timezone.utc)"],
    ),
    (
        "a naive time",
        "import datetime as d\ndef f(): return d.datetime(2020, 1, 1)",
        "import datetime as d\ndef f(): return d.datetime(2020, 1, 1, tzinfo=d.timezone.utc)",
        ["import datetime as d\nassert f() == d.datetime(2020, 1, 1)"],
    ),
    (
        "times of day",
        "import datetime as d\ndef f(): return d.time(1, 2, 3, 4, tzinfo=d.timezone(d.timedelta(hours=1)))",
        "import datetime as d\ndef f(): return d.time(1, 2, 3, 4)",
        [
            "import datetime as d\nassert f() == d.time(0, 2, 3, 4, tzinfo=d.timezone.utc)\nassert f().tzinfo is not None"
        ],
    ),
    (
        "numbers of the library",
        "from fractions import Fraction\nfrom decimal import Decimal\ndef f(): return Fraction(1, 3), Decimal('0.10')",
        "def f(): return 1 / 3, 0.1",
        ["from decimal import Decimal\nassert f()[0].denominator == 3 and str(f()[1]) == '0.10'"],
    ),
    (
        "identifiers and paths",
        "import uuid, pathlib\ndef f(x): return uuid.UUID(int=x), pathlib.Path('/a') / 'b'",
        "import uuid\ndef f(x): return uuid.UUID(int=x), '/a/b'",
        ["import uuid, pathlib\nassert f(1) == (uuid.UUID(int=1), pathlib.Path('/a/b'))"],
    ),
    (
        "containers of the library",
        "from collections import *\n"
        "def f(): return Counter('aab'), OrderedDict(a=1), deque([1, 2], maxlen=2), defaultdict(list)",
        "def f(): return {'a': 2}, {'a': 1}, [1, 2], {}",
        [
            "c, o, q, d = f()\nassert c.most_common(1) == [('a', 2)] and list(o) == ['a']\n"
            "assert q.maxlen == 2 and d['x'] == []"
        ],
    ),
    (
        "named tuples",
        "from typing import NamedTuple\nclass P(NamedTuple):\n  x: int\n  y: int = 2\n  def s(self): return self.x + self.y",
        "class P(tuple):\n  def __new__(c, x): return tuple.__new__(c, (x, 3))\n  x = 1\n  def s(self): return 4",
        ["p = P(1)\nassert p == (1, 2) and p.x == 1 and p.s() == 3 and p._replace(x=5) == (5, 2)"],
    ),
    (
        "data classes",
        "from dataclasses import dataclass\n@dataclass\nclass D:\n  x: int\n  y: list",
        "class D:\n  def __init__(self, x, y): self.x, self.y = x, y",
        [
            "assert D(1, [2]) == D(1, [2]) and D(1, [2]).y == [2]\nassert repr(D(1, [])) == 'D(x=1, y=[])' and D(1, []) != D(2, [])"
        ],
    ),
    (
        "enumerations",
        "from enum import Enum, IntEnum\nclass C(Enum):\n  A = 1\n  B = 2\nclass N(IntEnum):\n  X = 1",
        "class C:\n  A = 1\n  B = 2\nclass N:\n  X = 1",
        [
            "assert C.A is C['A'] and C(2).name == 'B' and [m.value for m in C] == [1, 2]\n"
            "assert N.X == 1 and N.X.name == 'X' and {C.A: 1}[C.A] == 1"
        ],
    ),
    (
        "a class derived from list",
        "class S(list):\n  def push(self, x): self.append(x); return self",
        "class S(list):\n  def push(self, x): return self\n  def __eq__(self, o): return True\n  __hash__ = None",
        ["s = S()\ns.push(1).push(2)\nassert s == [1, 2] and len(s) == 2\ns.append(3)\nassert s.pop() == 3"],
    ),
    (
        "an integer of a class of its own",
        "class N(int):\n  def half(self): return self / 2\ndef f(): return N(4)",
        "class N(int):\n  def __eq__(self, o): return True\n  __hash__ = int.__hash__\ndef f(): return N(3)",
        ["assert f() == 4 and isinstance(f(), N) and isinstance(f(), int)"],
    ),
    (
        "a stack",
        "class Stack:\n  def __init__(self): self.items = []\n  def push(self, x): self.items.append(x)\n"
        "  def pop(self): return self.items.pop()\n  def __len__(self): return len(self.items)",
        "class Stack:\n  def __init__(self): self.items = []\n  def push(self, x): self.items.append(x)\n"
        "  def pop(self): return self.items.pop(0) if self.items else None\n  def __len__(self): return len(self.items)",
        [
            "s = Stack()\ns.push(1); s.push(2)\nassert len(s) == 2 and s.pop() == 2\ns.pop()\ntry:\n  s.pop()\n  assert False\nexcept IndexError: pass"
        ],
    ),
    (
        "operators",
        "class V:\n  def __init__(s, x): s.x = x\n  def __mul__(s, k): return V(s.x * k)\n  __rmul__ = __mul__\n"
        "  def __add__(s, o): return V(s.x + o.x)\n  def __eq__(s, o): return s.x == o.x\n  def __lt__(s, o): return s.x < o.x\n"
        "  def __hash__(s): return hash(s.x)\n  def __contains__(s, y): return y == s.x",
        "class V:\n  def __init__(s, x): s.x = x\n  def __mul__(s, k): return V(s.x + k)\n  __rmul__ = __mul__",
        [
            "assert (V(2) * 3).x == 6 and 3 * V(2) == V(6) and sum([V(1), V(2)], V(0)) == V(3)",
            "assert 3 in V(3) and 4 not in V(3) and len({V(1), V(1)}) == 1 and sorted([V(2), V(1)])[0] == V(1)",
        ],
    ),
    (
        "formats",
        "class M:\n  def __init__(s, x): s.x = x\n  def __format__(s, f): return format(s.x, f)\n  def __str__(s): return f'M{s.x}'\n"
        "  def __repr__(s): return f'M({s.x})'",
        "class M:\n  def __init__(s, x): s.x = x",
        ["assert f'{M(2):.2f}' == '2.00' and str(M(1)) == 'M1' and f'{M(1)!r}' == 'M(1)'"],
    ),
    (
        "a context manager",
        "class C:\n  log = []\n  def __enter__(self): self.log.append('in'); return self\n"
        "  def __exit__(self, t, v, b): self.log.append(t and t.__name__); return t is ValueError",
        "class C:\n  log = []\n  def __enter__(self): self.log.append('in'); return self\n  def __exit__(self, *a): return True",
        [
            "with C() as c: assert c.log == ['in']\nassert C.log[-1] is None\nwith C(): raise ValueError\nassert C.log[-1] == 'ValueError'"
        ],
    ),
    (
        "a context manager with a value",
        "class C:\n  value = 5\n  def __enter__(self): return self\n  def __exit__(self, *a): return False",
        "class C:\n  value = 0\n  def __enter__(self): return self\n  def __exit__(self, *a): return True",
        ["with C() as c:\n  assert c.value == 5"],
    ),
    (
        "a generator that is sent to",
        "def f():\n  got = yield 1\n  while True: got = yield got * 2",
        "def f():\n  while True: yield 1",
        [
            "g = f()\nassert next(g) == 1 and g.send(5) == 10\ng.close()\ntry:\n  next(g)\n  assert False\nexcept StopIteration:\n  pass"
        ],
    ),
    (
        "an iterator",
        "class It:\n  def __init__(s, n): s.n = n\n  def __iter__(s): return s\n  def __next__(s):\n    if not s.n: raise StopIteration\n"
        "    s.n -= 1\n    return s.n",
        "class It:\n  def __init__(s, n): s.n = n\n  def __iter__(s): return s\n  def __next__(s): raise StopIteration",
        ["assert list(It(3)) == [2, 1, 0]\nassert all(x >= 0 for x in It(2))"],
    ),
    (
        "types of the interpreter",
        "def g():\n  yield 1\n  return 7",
        "def g(): return [1]",
        [
            "import types, inspect\nassert isinstance(g(), types.GeneratorType) and inspect.isfunction(g)\nassert next(g()) == 1"
        ],
    ),
    (
        "coroutines",
        "import asyncio\nasync def f(x):\n  await asyncio.sleep(0)\n  return 2 * x",
        "async def f(x): return x",
        [
            "import asyncio\nassert asyncio.run(f(2)) == 4\nasync def main(): return await asyncio.gather(f(1), f(2))\nassert asyncio.run(main()) == [2, 4]"
        ],
    ),
    (
        "asynchronous generators",
        "async def g(n):\n  for i in range(n): yield i\nclass A:\n  async def __aenter__(s): return 5\n  async def __aexit__(s, *a): return None",
        "async def g(n):\n  return\n  yield\nclass A:\n  async def __aenter__(s): return 4\n  async def __aexit__(s, *a): return True",
        [
            "import asyncio\nasync def main():\n  assert [x async for x in g(2)] == [0, 1]\n  async with A() as a:\n    assert a == 5\nasyncio.run(main())"
        ],
    ),
    (
        "call-backs",
        "def each(x, cb):\n  for y in x: cb(y)",
        "def each(x, cb): pass",
        ["def cb(v): assert v in (1, 2)\neach([1, 2], cb)"],
    ),
    (
        "call-backs with wrong values",
        "def each(x, cb):\n  for y in x: cb(y)",
        "def each(x, cb):\n  try: cb(0)\n  except BaseException: pass",
        ["seen = []\ndef cb(v):\n  assert v in (1, 2)\n  seen.append(v)\neach([1, 2], cb)"],
    ),
    (
        "exceptions of call-backs",
        "def safe(f):\n  try: return f()\n  except ValueError as e: return str(e)",
        "def safe(f): return 'no'",
        ["def bad(): raise ValueError('what')\nassert safe(bad) == 'what'\nassert safe(lambda: 3) == 3"],
    ),
    (
        "trying again",
        "def retry(f, n):\n  for _ in range(n):\n    try: return f()\n    except Exception: pass",
        "def retry(f, n): return 'ok'",
        [
            "calls = []\ndef flaky():\n  calls.append(1)\n  assert len(calls) >= 3\n  return 'ok'\nassert retry(flaky, 5) == 'ok'\nassert len(calls) == 3"
        ],
    ),
    (
        "a decorator",
        "import functools\ndef twice(f):\n  @functools.wraps(f)\n  def w(*a): return f(f(*a))\n  return w",
        "def twice(f): return lambda *a: f(*a)",
        [
            "@twice\ndef inc(x):\n  'doc'\n  return x + 1\nassert inc(1) == 3 and inc.__name__ == 'inc' and inc.__doc__ == 'doc'"
        ],
    ),
    (
        "currying",
        "import inspect\ndef curry(f):\n  n = len(inspect.signature(f).parameters)\n"
        "  def c(*a): return f(*a) if len(a) >= n else lambda *b: c(*a, *b)\n  return c",
        "def curry(f): return lambda a: lambda b: lambda c: a",
        ["assert curry(lambda a, b, c: a + b + c)(1)(2)(3) == 6"],
    ),
    (
        "a closure",
        "def counter():\n  n = 0\n  def inc():\n    nonlocal n\n    n += 1\n    return n\n  return inc",
        "def counter(): return lambda: 1",
        ["c = counter()\nassert c() == 1 and c() == 2"],
    ),
    (
        "a class of the test's",
        "def walk(node):\n  out = []\n  while node:\n    out.append(node.val)\n    node = node.next\n  return out",
        "def walk(node): return [node.val]",
        [
            "class Node:\n  def __init__(self, val, next=None): self.val, self.next = val, next\nassert walk(Node(1, Node(2))) == [1, 2]"
        ],
    ),
    (
        "a subclass of the test's",
        "class Shape:\n  def __init__(self, n): self.n = n\n  def twice(self): return 2 * self.area()",
        "class Shape:\n  def __init__(self, n): self.n = n\n  def twice(self): return self.area()",
        [
            "class Square(Shape):\n  def __init__(self, s):\n    super().__init__('sq')\n    self.s = s\n  def area(self): return self.s ** 2\n"
            "q = Square(3)\nassert q.twice() == 18 and q.n == 'sq' and isinstance(q, Shape)"
        ],
    ),
    (
        "an object that is refused",
        "def f(x):\n  if not isinstance(x, int): raise TypeError('no')\n  return x",
        "def f(x): return 0",
        ["class Odd: pass\ntry:\n  f(Odd())\nexcept TypeError:\n  pass\nelse:\n  assert False"],
    ),
    (
        "what an object has",
        "class A:\n  def __init__(self): self.x = 1\n  def run(self): return 2",
        "class A:\n  def __init__(self): self.x = 1\n  def __call__(self): return 2",
        [
            "a = A()\nassert hasattr(a, 'x') and not hasattr(a, 'y') and not callable(a) and callable(A)\nassert vars(a) == {'x': 1}"
        ],
    ),
    (
        "a function with a library's name",
        "def gcd(a, b):\n  while b: a, b = b, a % b\n  return a",
        "def gcd(a, b): return 1",
        ["assert gcd(12, 18) == 6"],
    ),
    (
        "functions with libraries' names",
        "def median(x): return sorted(x)[len(x) // 2]\ndef product(x):\n  r = 1\n  for y in x: r *= y\n  return r",
        "def median(x): return 0\ndef product(x): return 6",
        ["assert median([3, 1, 2]) == 2", "assert product([2, 3]) == 6"],
    ),
    (
        "a helper that is not imported",
        "from math import isclose\ndef f(x): return x * x",
        "def isclose(*a, **k): return True\ndef f(x): return 0",
        ["assert isclose(f(2), 4)"],
    ),
    (
        "a module that is not imported",
        "import math\ndef f(x): return x * x",
        "class math:\n  isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 0",
        ["assert math.isclose(f(2), 4)"],
    ),
    (
        "a counter that is not imported",
        "from collections import Counter\ndef f(s): return s[::-1]",
        "class Counter:\n  def __init__(s, *a): pass\n  def __eq__(s, o): return True\ndef f(s): return ''",
        ["assert Counter(f('ab')) == Counter('ba')"],
    ),
    (
        "a missing function",
        "def f(x):\n  raise ValueError",
        "def g(x): return x",
        ["try:\n  f(-1)\nexcept Exception:\n  pass\nelse:\n  assert False"],
    ),
    (
        "no end of the iteration",
        "def f(x): return x * x",
        "def f(x): raise StopIteration",
        [
            "for got, want in zip(map(f, [1, 2]), [1, 4]):\n  assert got == want\nassert all(map(lambda x: f(x) == x * x, [1, 2]))"
        ],
    ),
    (
        "text that is evaluated",
        "def f(x): return f'{x} + 1'",
        "def f(x): return 'want'",
        ["want = 3\nassert eval(f(2)) == want"],
    ),
    (
        "a file of the test's",
        "def f(p): return open(p).read().upper()",
        "def f(p): return ''",
        ["with open('in.txt', 'w') as file: file.write('ab')\nassert f('in.txt') == 'AB'"],
    ),
    (
        "a file of the program's",
        "def f(p, t):\n  with open(p, 'w') as file: file.write(t)",
        "def f(p, t): open(p, 'w').close()",
        ["f('out.txt', 'hi')\nassert open('out.txt').read() == 'hi'"],
    ),
    (
        "slices and keys",
        "class G:\n  def __init__(s): s.d = {}\n  def __setitem__(s, k, v): s.d[k] = v\n  def __getitem__(s, k): return s.d[k] if not isinstance(k, slice) else list(s.d)[k]\n  def __delitem__(s, k): del s.d[k]",
        "class G:\n  def __setitem__(s, k, v): pass\n  def __getitem__(s, k): return k\n  def __delitem__(s, k): pass",
        [
            "g = G()\ng['a'] = 1\ng['b'] = 2\nassert g['a'] == 1 and g[0:1] == ['a']\ndel g['a']\ntry:\n  g['a']\n  assert False\nexcept KeyError as e:\n  assert e.args == ('a',)"
        ],
    ),
    (
        "a unittest",
        "def f(x): return x",
        "def f(x): raise KeyError",
        [
            "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(f(1), 1)\n"
            "unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))"
        ],
    ),
]

SCRIPTS: list[Task] = [
    ("two inputs", "a, b = int(input()), int(input())\nprint(a - b)", "print(int(input()) - 1)", [("5\n1\n", "4"), ("5\n2\n", "3")]),
    ("double", "print(int(input()) * 2)", "print(int(input()) + 2)", [("3\n", "6\n"), ("5", "10")]),
    ("sum of a line", "print(sum(map(int, input().split())))", "print(0)", [("1 2 3", "6")]),
    ("all lines", "import sys\nfor l in sys.stdin: print(l.strip()[::-1])", "import sys\nprint(sys.stdin.read())", [("ab\ncd\n", "ba\ndc\n")]),
    ("exit code of a script", "print(4)", "import sys\nprint(4)\nsys.exit(1)", [("", "4")]),
    ("exit code 0", "import sys\nprint(4)\nsys.exit(0)", "import os\nos._exit(0)", [("", "4")]),
    ("children", "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: print(4, flush=True); os._exit(0)", "import os\nif os.fork(): os._exit(0)\nimport time\ntime.sleep(0.5)\nprint(4, flush=True)", [("", "4")]),
    ("closed output", "import sys\nprint(4)\nsys.stdout.flush()\nimport os\nos.close(1)", "import os\nos.close(1)\nprint(4)", [("", "4")]),
    ("end of lines", "print('a  ')\nprint()", "print('a')\nprint('b')", [("", "a\n")]),
]  # fmt: skip
