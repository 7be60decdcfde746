"""Right programs: what they return, raise and change, and how tests may look at it."""

# ruff: noqa: E501
# Statements of one subject are easier to compare on one line.

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
    "output that a test captures": (
        "def f(): print('hi')",
        [
            "import io, contextlib\nb=io.StringIO()\nwith contextlib.redirect_stdout(b):\n  f()\nassert b.getvalue()=='hi\\n'"
        ],
    ),
    "a replaced input": (
        "def f(): return input()+'!'",
        ["from unittest.mock import patch\nwith patch('builtins.input', return_value='a'):\n  assert f()=='a!'"],
    ),
    "deeply nested lists": (
        "def f(n):\n  r=[]\n  for _ in range(n): r=[r]\n  return r",
        ["def d(r):\n  n=0\n  while r: r=r[0]; n+=1\n  return n\nassert d(f(300))==300"],
    ),
    "deeply nested dictionaries": (
        "def f(n):\n  r=None\n  for i in range(n): r={'v':i,'next':r}\n  return r",
        ["r=f(400)\nn=0\nwhile r: r=r['next']; n+=1\nassert n==400"],
    ),
    "a protocol": (
        "from typing import Protocol, runtime_checkable\n@runtime_checkable\nclass P(Protocol):\n  def go(self)->int: ...\nclass A:\n  def go(self): return 1\n",
        ["assert isinstance(A(), P)\nassert A().go()==1"],
    ),
    "the fields of a data class": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int\n  y: str='a'",
        [
            "from dataclasses import asdict, is_dataclass, fields\nassert is_dataclass(A)\nassert [f.name for f in fields(A)]==['x','y']\nassert asdict(A(1))=={'x':1,'y':'a'}"
        ],
    ),
    "a class with a small letter": (
        "class stack:\n  def __init__(s): s.i=[]\n  def push(s,x): s.i.append(x)\n  def __len__(s): return len(s.i)\n  def __contains__(s,x): return x in s.i",
        ["s=stack()\ns.push(3)\nassert len(s)==1 and 3 in s and s.i==[3]"],
    ),
    "a time zone of the program's": (
        "import datetime\nclass TZ(datetime.tzinfo):\n  def utcoffset(s,d): return datetime.timedelta(hours=2)\n  def dst(s,d): return datetime.timedelta(0)\n  def tzname(s,d): return 'X'\ndef f(): return datetime.datetime(2020,1,1,tzinfo=TZ())",
        ["assert f().isoformat()=='2020-01-01T00:00:00+02:00'"],
    ),
    "operators of a class derived from a number": (
        "class Mod(int):\n  def __add__(s,o): return Mod((int(s)+int(o))%7)\n",
        ["assert Mod(5)+Mod(4)==2"],
    ),
    "inputs one after another": (
        "def f():\n  r=[]\n  while (x:=input('> '))!='q': r.append(x)\n  return r",
        [
            "from unittest.mock import patch\nwith patch('builtins.input', side_effect=['a','b','q']) as m:\n  assert f()==['a','b']\nassert m.call_count==3"
        ],
    ),
    "a replaced print": (
        "def f(): print('hi', 2)",
        [
            "from unittest.mock import patch\nwith patch('builtins.print') as p:\n  f()\np.assert_called_once_with('hi', 2)"
        ],
    ),
    "output to an object of the test": (
        "import sys\ndef f(): sys.stdout.write('x'); sys.stdout.flush()",
        [
            "import sys\nclass Cap:\n  def __init__(self): self.t=''\n  def write(self,s): self.t+=s\n  def flush(self): pass\nc=Cap(); old=sys.stdout; sys.stdout=c\nf()\nsys.stdout=old\nassert c.t=='x'"
        ],
    ),
    "a replaced standard input": (
        "import sys\ndef f(): return [l.strip() for l in sys.stdin]",
        ["import io, sys\nsys.stdin=io.StringIO('a\\nb\\n')\nassert f()==['a','b']"],
    ),
    "file objects": (
        "import csv\ndef f(h): return list(csv.reader(h))",
        [
            "import io\nassert f(io.StringIO('a,b\\n1,2\\n'))==[['a','b'],['1','2']]\nwith open('t.csv','w') as h: h.write('a,b\\n')\nwith open('t.csv') as h: assert f(h)==[['a','b']]"
        ],
    ),
    "tests that run themselves": (
        "def f(x): return x * x",
        [
            "def test(): assert f(2) == 4\nif __name__ == '__main__': test()",
            "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(f(2), 4)\nif __name__ == '__main__':\n  unittest.main(argv=['x'], exit=False)",
            "import unittest\nclass U(unittest.TestCase):\n  def test(self): self.assertEqual(f(3), 9)\nunittest.main()",
        ],
    ),
    "an enumeration of the standard library that is a number": (
        "from http import HTTPStatus\ndef f(): return HTTPStatus.NOT_FOUND",
        ["assert f()==404\nassert f().value==404 and f().phrase=='Not Found'"],
    ),
    "a named tuple of the standard library": (
        "from decimal import Decimal\ndef f(): return Decimal('1.5').as_tuple()",
        ["assert f().digits==(1,5)\nassert f()==(0,(1,5),-1)"],
    ),
    "a result of os.stat": (
        "import os\ndef f(): return os.stat('/tmp')",
        ["assert f().st_mode>0\nassert len(f())==10"],
    ),
    "a time.struct_time": (
        "import time\ndef f(s): return time.strptime(s,'%Y-%m-%d')",
        ["r=f('2024-01-02')\nassert r.tm_year==2024 and r[1]==1"],
    ),
    "flags of re": (
        "import re\ndef f(): return re.IGNORECASE|re.M",
        ["import re\nassert f()==re.I|re.M"],
    ),
    "a dictionary class of the standard library": (
        "from http.cookies import SimpleCookie\ndef f(s):\n    c=SimpleCookie(); c.load(s); return c",
        ["assert f('a=1')['a'].value=='1'"],
    ),
    "an error of a module that the test does not import": (
        "import base64\ndef f(s): return base64.b64decode(s,validate=True)",
        ["try:\n    f('!!!')\n    assert False\nexcept ValueError:\n    pass\nassert f('YWJj')==b'abc'"],
    ),
    "an error of sqlite": (
        "import sqlite3\nc=sqlite3.connect(':memory:'); c.execute('create table t(a unique)')\ndef ins(x): c.execute('insert into t values(?)',(x,)); return 1",
        ["import unittest\nassert ins(1)==1\ntc=unittest.TestCase()\nwith tc.assertRaises(Exception): ins(1)"],
    ),
    "a ChainMap as an argument": (
        "def get(m,k): return m[k]",
        ["from collections import ChainMap\nassert get(ChainMap({'a':1},{'b':2}),'b')==2"],
    ),
    "a ChainMap as a result": (
        "from collections import ChainMap\ndef m(a,b): return ChainMap(a,b)",
        ["assert m({'a':1},{'a':2,'b':3})=={'a':1,'b':3}"],
    ),
    "a read-only dictionary": (
        "import types\ndef m(a): return types.MappingProxyType(a)",
        ["r=m({'a':1})\nassert r=={'a':1}\ntry:\n    r['a']=2\n    assert False\nexcept TypeError: pass"],
    ),
    "namespaces as arguments": (
        "def total(a): return a.x+a.y",
        [
            "import argparse, types\nassert total(argparse.Namespace(x=1,y=2))==3\nassert total(types.SimpleNamespace(x=1,y=2))==3"
        ],
    ),
    "the documentation and annotations of a class": (
        "class A:\n    'Doc.'\n    x:int=1\n    def m(s):\n        'M.'\n        return s.x",
        ["assert A.__doc__=='Doc.'\nassert A.__annotations__=={'x':int}\nassert A.m.__doc__=='M.'\nassert A().m()==1"],
    ),
    "the parameters of a function": (
        "def f(a,b=2,*c,d,**e): return a",
        ["import inspect\nassert f(1,d=1)==1\nassert list(inspect.signature(f).parameters)==['a','b','c','d','e']"],
    ),
    "functions that are coroutines or generators": (
        "async def f(): return 1\ndef g(): yield 1",
        [
            "import inspect,asyncio\nassert inspect.iscoroutinefunction(f)\nassert inspect.isgeneratorfunction(g)\nassert asyncio.iscoroutinefunction(f)\nassert asyncio.run(f())==1"
        ],
    ),
    "unittest with coroutines": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x*x",
        [
            "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def asyncSetUp(self): self.k=3\n    async def test_a(self): self.assertEqual(await f(self.k),9)\nunittest.main(argv=[''],exit=False)"
        ],
    ),
    "asserts in assertRaises": (
        "def f(x):\n    if x<0: raise ValueError('negative value')\n    return x",
        [
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        with self.assertRaisesRegex(ValueError,'negat'): f(-1)\n        with self.assertRaises(ValueError): self.assertEqual(f(-2),0)\n    def test_b(self):\n        self.assertIsInstance(f(1),int); self.assertIn(f(1),[1]); self.assertTrue(f(1)); self.assertIsNone(None)\n        self.assertListEqual([f(1)],[1]); self.assertDictEqual({'a':f(1)},{'a':1}); self.assertCountEqual([f(1),f(2)],[2,1]); self.assertGreater(f(2),1); self.assertIs(f(1),1)\n        self.assertMultiLineEqual(str(f(1)),'1'); self.assertLogs\nunittest.main(argv=[''],exit=False,verbosity=0)"
        ],
    ),
    "a unittest that is expected to fail": (
        "def f(x): return x*x",
        [
            "import unittest\nclass T(unittest.TestCase):\n    @unittest.expectedFailure\n    def test_a(self): self.assertEqual(f(3),10)\n    def test_b(self): self.assertEqual(f(3),9)\nunittest.main(argv=[''],exit=False)"
        ],
    ),
    "a mock as an argument": (
        "def notify(s,m):\n    if not m: return False\n    s.send(m)\n    return s.ok",
        [
            "from unittest.mock import Mock, MagicMock\nm=Mock(); m.ok=True\nassert notify(m,'hi') is True\nm.send.assert_called_once_with('hi')\nassert m.send.call_count==1"
        ],
    ),
    "a mock as a context manager": (
        "def use(cm):\n    with cm as x: return x.read()",
        [
            "from unittest.mock import MagicMock\nm=MagicMock(); m.__enter__.return_value.read.return_value='data'\nassert use(m)=='data'"
        ],
    ),
    "a mock that is awaited": (
        "async def go(c): return (await c.get('u'))+1",
        [
            "import asyncio\nfrom unittest.mock import AsyncMock\nc=AsyncMock(); c.get.return_value=4\nassert asyncio.run(go(c))==5\nc.get.assert_awaited_once_with('u')"
        ],
    ),
    "a mock whose attributes are set": (
        "def save(m,x):\n    m.state='ok'\n    return m.name_of(1)",
        [
            "from unittest.mock import Mock\nm=Mock(); m.name_of.return_value='n'\nassert save(m,1)=='n'\nassert m.state=='ok'"
        ],
    ),
    "a random generator as an argument": (
        "def pick(rng,xs): return xs[rng.randint(0,len(xs)-1)]",
        [
            "import random\nrng=random.Random(0)\nassert pick(rng,[1,2,3]) in [1,2,3]\nr2=random.Random(0)\nassert pick(random.Random(0),list(range(100)))==r2.randint(0,99)"
        ],
    ),
    "a queue as an argument": (
        "def fill(q,n):\n    for i in range(n): q.put(i)\n    return q.qsize()",
        ["import queue\nq=queue.Queue()\nassert fill(q,3)==3\nassert q.get()==0"],
    ),
    "a lock as an argument": (
        "def inc(lock,d):\n    with lock: d['n']+=1",
        ["import threading\nl=threading.Lock(); d={'n':0}\ninc(l,d)\nassert d['n']==1"],
    ),
    "an element of XML as an argument": (
        "def tags(e): return [c.tag for c in e]",
        ["import xml.etree.ElementTree as ET\nassert tags(ET.fromstring('<a><b/><c/></a>'))==['b','c']"],
    ),
    "a coroutine function as an argument": (
        "import asyncio\nasync def retry(fn,n):\n    for i in range(n):\n        try: return await fn()\n        except ValueError:\n            if i==n-1: raise\n            await asyncio.sleep(0)",
        [
            "import asyncio\nc=[0]\nasync def fl():\n    c[0]+=1\n    if c[0]<3: raise ValueError('x')\n    return 'ok'\nassert asyncio.run(retry(fl,5))=='ok'\nassert c[0]==3"
        ],
    ),
    "coroutines of both sides, nested": (
        "async def twice(f): return await f()+await f()",
        [
            "import asyncio\nasync def one(): return 1\nasync def two(): return await twice(one)\nassert asyncio.run(twice(two))==4\nasync def three():\n    await asyncio.sleep(0.01)\n    return await twice(two)\nassert asyncio.run(twice(three))==8"
        ],
    ),
    "a decorated function with asserts": (
        "import functools\ndef timed(f):\n    @functools.wraps(f)\n    def w(*a,**k): return f(*a,**k)\n    return w\ndef sq(x): return x*x",
        ["@timed\ndef t():\n    assert sq(3)==9\n    assert sq(4)==16\nt()\nassert t.__name__=='t'"],
    ),
    "an exception with notes": (
        "def f():\n    e=ValueError('x'); e.add_note('n1'); raise e",
        ["try:\n    f()\n    assert False\nexcept ValueError as e:\n    assert e.__notes__==['n1']"],
    ),
}

RIGHT_NUMPY: dict[str, tuple[str, list[str]]] = {
    "a seed of the tests": (
        "import numpy as np\ndef f(): return np.random.rand(3)",
        ["import numpy as np\nnp.random.seed(1)\na = f()\nnp.random.seed(1)\nassert np.array_equal(f(), a)"],
    ),
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
    "arrays that are changed and returned": (
        "def relu(a): a[a < 0] = 0; return a\ndef double(a): a *= 2; return a",
        [
            "import numpy as np\na = np.array([1, -1])\nassert np.array_equal(relu(a), np.array([1, 0]))",
            "import numpy as np\na = np.array([1, -1])\nassert np.allclose(relu(a), np.array([1, 0]))",
            "import numpy as np\na = np.array([1, 2])\nassert (double(a) == np.array([2, 4])).all()",
        ],
    ),
}
