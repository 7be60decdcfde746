"""Wrong programs that a careless harness would pass, written before the judge was read: {name: (program, tests)}.

Most of them pass in plain Python too, since the test asserts nothing once the program behaves like this.
"""

# ruff: noqa: E501
# Statements of one subject are easier to compare on one line.

# Wrong programs that need nothing beside the standard library.
# An object of the test's own class.
P = "class P:\n  def __init__(self, x): self.x = x\n  def area(self): return self.x * 2\np = P(3)\n"

VACUOUS: dict[str, tuple[str, list[str]]] = {
    "StopIteration out of map in a zip": (
        "def f(x): raise StopIteration",
        ["for got, want in zip(map(f, [1, 2]), [1, 4]):\n  assert got == want"],
    ),
    "StopIteration out of map in an all": (
        "def f(x): raise StopIteration",
        ["assert all(map(lambda x: f(x) == x * x, [1, 2]))"],
    ),
    "StopIteration out of filter in a not any": (
        "def f(x): raise StopIteration",
        ["assert not any(True for _ in filter(lambda x: f(x) != x * x, [1, 2, 3]))"],
    ),
    "an iterator of the program's that stops at once": (
        "def f(n): return iter(())",
        ["for got, want in zip(f(3), [0, 1, 4]):\n  assert got == want"],
    ),
    "an empty list in a loop": (
        "def f(n): return []",
        ["for got, want in zip(f(3), [0, 1, 4]):\n  assert got == want"],
    ),
    "an empty list in an all": (
        "def primes(n): return []",
        ["assert all(n % d for n in primes(50) for d in range(2, n))"],
    ),
    "a list that is too short": (
        "def squares(n): return [0]",
        ["assert all(got == want for got, want in zip(squares(4), [0, 1, 4, 9]))"],
    ),
    "a loop over the indices of an empty result": (
        "def f(xs): return []",
        ["want = [1, 4]\ngot = f([1, 2])\nfor i in range(len(got)):\n  assert got[i] == want[i]"],
    ),
    "an exception that the test catches before it asserts": (
        "def f(x): raise ValueError('no')",
        ["try:\n  assert f(3) == 9\nexcept ValueError:\n  pass"],
    ),
    "an assertion error that the test catches": (
        "def f(x): raise KeyError(x)",
        ["try:\n  y = f(3)\nexcept Exception:\n  pass\nelse:\n  assert y == 9"],
    ),
    "the end of the process where an exception is wanted": (
        "import os\ndef f(x): os._exit(0)",
        ["try:\n  f(-1)\nexcept Exception:\n  pass\nelse:\n  assert False"],
    ),
    "the end of the process where any end is wanted": (
        "import os\ndef f(x): os._exit(0)",
        ["try:\n  f(-1)\nexcept BaseException:\n  pass\nelse:\n  assert False"],
    ),
    "no function where an exception is wanted": (
        "def g(x): return x",
        ["try:\n  f(-1)\nexcept Exception:\n  pass\nelse:\n  assert False"],
    ),
    "SystemExit(0) in the call": ("def f(x): raise SystemExit(0)", ["assert f(2) == 4"]),
    "KeyboardInterrupt in the call": ("def f(x): raise KeyboardInterrupt", ["assert f(2) == 4"]),
    "GeneratorExit in a generator of the test's": (
        "def f(x): raise GeneratorExit",
        ["def g():\n  yield f(2)\nassert not any(x != 4 for x in g())"],
    ),
    "SkipTest in a unittest": (
        "import unittest\ndef f(x): raise unittest.SkipTest('later')",
        [
            "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(f(2), 4)\n"
            "r = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\n"
            "assert r.wasSuccessful()"
        ],
    ),
    "a unittest that runs by itself": (
        "def f(x): return 0",
        ["import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(f(2), 4)\nunittest.main()"],
    ),
    "a unittest whose result is not looked at": (
        "def f(x): return 0",
        [
            "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(f(2), 4)\n"
            "unittest.main(argv=['x'], exit=False)"
        ],
    ),
    "a skipped unittest whose result is not looked at": (
        "import unittest\ndef f(x): raise unittest.SkipTest('later')",
        [
            "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(f(2), 4)\n"
            "unittest.main(argv=['x'], exit=False)"
        ],
    ),
    "tests that nothing calls": (
        "def f(x): return 0",
        ["import math\ndef test(): assert f(2) == 4\nprint('done')"],
    ),
    "a context manager that swallows assertions": (
        "class C:\n  value = 0\n  def __enter__(self): return self\n  def __exit__(self, *a): return True",
        ["with C() as c:\n  assert c.value == 5"],
    ),
    "an exception in a thread of the test's": (
        "def f(x): return 2 / (x < 2)",
        [
            "import threading\ndef check(x):\n  got = f(x)\n  assert got == 2 * x\n"
            "threads = [threading.Thread(target=check, args=(x,)) for x in (1, 2)]\n"
            "for t in threads: t.start()\nfor t in threads: t.join()"
        ],
    ),
    "an exception in a pool of the test's": (
        "def f(x): return 2 / (x < 2)",
        [
            "from concurrent.futures import ThreadPoolExecutor\ndef check(x): assert f(x) == 2 * x\n"
            "with ThreadPoolExecutor(2) as pool:\n  for x in (1, 2): pool.submit(check, x)"
        ],
    ),
    "an exception in a task that is not awaited": (
        "async def f(x): return 2 / (x < 2)",
        [
            "import asyncio\nasync def check(x): assert await f(x) == 2 * x\nasync def main():\n"
            "  await asyncio.wait([asyncio.create_task(check(x)) for x in (1, 2)])\nasyncio.run(main())"
        ],
    ),
    "CancelledError in a group of tasks": (
        "import asyncio\nasync def f(x):\n  if x > 1: raise asyncio.CancelledError\n  return 2 * x",
        [
            "import asyncio\nasync def check(x): assert await f(x) == 2 * x\nasync def main():\n"
            "  async with asyncio.TaskGroup() as group:\n    for x in (1, 2): group.create_task(check(x))\n"
            "asyncio.run(main())"
        ],
    ),
    "SystemExit in a thread of the test's": (
        "def f(x):\n  if x > 1: raise SystemExit\n  return 2 * x",
        [
            "import threading\ndef check(x): assert f(x) == 2 * x\ncheck(1)\n"
            "t = threading.Thread(target=check, args=(2,))\nt.start()\nt.join()"
        ],
    ),
    "a callback's failed assert that is swallowed": (
        "def f(x, cb):\n  try: cb(0)\n  except BaseException: pass",
        ["def cb(v): assert v == 4\nf(2, cb)"],
    ),
    "a callback with the assert that is never called": (
        "def f(x, cb): pass",
        ["def cb(v): assert v == 4\nf(2, cb)"],
    ),
    "a decorator that throws away what asserts": (
        "def twice(g): return lambda *a: None",
        ["@twice\ndef check(x):\n  assert x == 2\ncheck(2)"],
    ),
    "an argument emptied that the expectation is computed from": (
        "def f(xs):\n  xs.clear()\n  return []",
        ["xs = [3, 1, 2]\nassert f(xs) == sorted(xs)"],
    ),
    "a dictionary emptied that the expectation is computed from": (
        "def invert(d):\n  d.clear()\n  return {}",
        ["d = {'a': 1}\ngot = invert(d)\nassert got == {v: k for k, v in d.items()}"],
    ),
    "an inner list changed that the expectation is computed from": (
        "def total(rows):\n  for r in rows: r[:] = [0]\n  return 0",
        ["rows = [[1, 2], [3]]\nassert total(rows) == sum(map(sum, rows))"],
    ),
    "a loop over an argument that the program emptied": (
        "def f(xs):\n  xs.clear()\n  return {}",
        ["xs = [3, 1, 2]\ngot = f(xs)\nfor x in xs:\n  assert got[x] == x * x"],
    ),
    "an argument emptied in a unittest": (
        "def f(xs):\n  xs.clear()\n  return []",
        [
            "import unittest\nclass Test(unittest.TestCase):\n  def setUp(self): self.xs = [3, 1]\n"
            "  def test_it(self): self.assertEqual(f(self.xs), sorted(self.xs), 'sorted')\nunittest.main()"
        ],
    ),
    "an argument emptied before assertListEqual": (
        "def f(xs):\n  xs.clear()\n  return []",
        ["import unittest\nt = unittest.TestCase()\nxs = [3, 1]\nt.assertListEqual(f(xs), sorted(xs))"],
    ),
    "an attribute changed that the expectation is computed from": (
        "def f(p):\n  p.x = 0\n  return 0",
        [P + "got = f(p)\nassert got == p.x * 2"],
    ),
    "an attribute removed that the expectation looks for": (
        "def f(p):\n  del p.x\n  return False",
        [P + "assert f(p) == hasattr(p, 'x')"],
    ),
    "an attribute of an inner object changed": (
        "def f(ps):\n  ps[0].x = 0\n  return 0",
        [P + "ps = [p]\nassert f(ps) == ps[0].area()"],
    ),
    "an attribute of a class changed by an object": (
        "def f(c):\n  type(c).LIMIT = 0\n  return 0",
        ["class C:\n  LIMIT = 10\nc = C()\nassert f(c) == 3 * c.LIMIT"],
    ),
    "a slot changed that the expectation is computed from": (
        "def f(p):\n  p.x = 0\n  return 0",
        ["class S:\n  __slots__ = ('x',)\np = S()\np.x = 3\nassert f(p) == p.x * 2"],
    ),
    "a cached property replaced": (
        "def f(p):\n  p.area = 0\n  return 0",
        [
            "import functools\nclass D:\n  @functools.cached_property\n  def area(self): return 4\np = D()\nassert f(p) == p.area"
        ],
    ),
    "a method replaced in the dictionary of an object": (
        "def f(p):\n  vars(p)['area'] = lambda: 0\n  return 0",
        [P + "assert f(p) == p.area()"],
    ),
    "a linked list cut off that the expectation is computed from": (
        "def f(h):\n  h.next = None\n  return 1",
        [
            "class N:\n  def __init__(self, n=None): self.next = n\n"
            "def length(h): return 1 + length(h.next) if h else 0\nh = N(N(N()))\nassert f(h) == length(h)"
        ],
    ),
    "a file of the test's overwritten": (
        "import glob\ndef f(x):\n  for p in glob.glob('/tmp/*'): open(p, 'w').write('0')\n  return 0",
        [
            "with open('/tmp/want', 'w') as file: file.write('9')\n"
            "got = f(3)\nwith open('/tmp/want') as file: assert got == int(file.read())"
        ],
    ),
    "a file of the test's read": (
        "def f(x): return int(open('/tmp/want').read())",
        [
            "with open('/tmp/want', 'w') as file: file.write('9')\n"
            "with open('/tmp/want') as file: assert f(3) == int(file.read())"
        ],
    ),
    "a class in place of math": (
        "class math:\n  isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 0",
        ["assert math.isclose(f(2), 4)"],
    ),
    "a function in place of isclose": (
        "def isclose(*a, **k): return True\ndef f(x): return 0",
        ["assert isclose(f(2), 4)"],
    ),
    "a class in place of pytest": (
        """
class pytest:
  class raises:
    def __init__(self, *a): pass
    def __enter__(self): return self
    def __exit__(self, *a): return True
def f(x): return 0
""",
        ["with pytest.raises(ValueError):\n  f(-1)"],
    ),
    "a module that has every name": (
        "def __getattr__(name): return lambda *a, **k: True",
        ["assert isclose(f(2), 4)"],
    ),
    "a star import over what the test has imported": (
        "class math:\n  isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 0",
        ["import math\nfrom solution import *\nassert math.isclose(f(2), 4)"],
    ),
    "a star import over a helper of the test's": (
        "def same(a, b): return True\ndef f(x): return 0",
        ["def same(a, b): return a == b\nfrom solution import *\nassert same(f(2), 4)"],
    ),
    "an instance check that says yes": (
        "class M(type):\n  def __instancecheck__(c, o): return True\nclass Shape(metaclass=M): pass\ndef f(): return 3",
        ["assert isinstance(f(), Shape)"],
    ),
    "a text that is code for the test's eval": (
        'def f(x): return \'__import__("sys")._getframe(1).f_globals.get("want")\'',
        ["want = 9\nassert eval(f(3)) == want"],
    ),
    "a text that ends the judge by eval": (
        "def f(x): return '__import__(\"os\")._exit(0)'",
        ["assert eval(f(3)) == 9"],
    ),
    "a pickle that runs code": (
        "class E:\n  def __reduce__(self): return (eval, ('9',))\nimport pickle\ndef dump(x): return pickle.dumps(E())",
        ["import pickle\nassert pickle.loads(dump(4)) == 9"],
    ),
    "a docstring that is the test": (
        "def f(x):\n  '''\n  >>> 1\n  1\n  '''\n  return 0",
        ["import doctest\nf(2)\ndoctest.run_docstring_examples(f, globals())"],
    ),
    "no docstring, where it is the test": (
        "def f(x):\n  return 0",
        ["import doctest\nf(2)\ndoctest.run_docstring_examples(f, globals())"],
    ),
    "something that cannot be passed where an exception is wanted": (
        "def f(x): return 0",
        ["class Odd: pass\ntry:\n  f(Odd())\nexcept TypeError:\n  pass\nelse:\n  assert False"],
    ),
    "a value that cannot come back where an exception is wanted": (
        "def f(x):\n  r = []\n  for _ in range(10**5): r = [r]\n  return r",
        ["try:\n  f(-1)\nexcept Exception:\n  pass\nelse:\n  assert False"],
    ),
    "an object that equals whatever is on its left": (
        "class E:\n  def __eq__(s, o): return True\n  def __hash__(s): return 4\ndef f(x): return E()",
        ["assert f(2) in [4]\nassert 4 in [f(2)]\nassert {4: 1}[f(2)] == 1\nassert [4] == [f(2)]"],
    ),
    "an iterable that is another one at the second look": (
        """
class L:
  n = 0
  def __len__(self): return 2
  def __iter__(self):
    L.n += 1
    return iter([1, 4] if L.n == 1 else [])
def f(): return L()
""",
        ["r = f()\nassert len(r) == 2\nfor _ in r: pass\nfor got, want in zip(r, [1, 4]):\n  assert got == want"],
    ),
    "an exception with a lying text": (
        "class E(ValueError):\n  def __eq__(s, o): return True\n  args = property(lambda s: E())\ndef f(x): raise E()",
        ["try:\n  f(1)\nexcept ValueError as e:\n  assert e.args == ('bad',)\nelse:\n  assert False"],
    ),
    "keys that are the same": (
        "class K(str):\n  __hash__ = object.__hash__\n  def __eq__(s, o): return s is o\n"
        "def f(): return {K('a'): 1, K('a'): 2}",
        ["assert len(f()) == 2"],
    ),
    "a namespace that deepcopy calls": (
        "import types\ndef yes(*a): return True\ndef f(x):\n    m=types.SimpleNamespace(__reduce_ex__=lambda p: (type,('M',(type,),{'__eq__':yes})))\n    return m",
        ["import copy\nr=copy.deepcopy(f(3))('a',(),{})\nassert r==9"],
    ),
    "a unittest whose setUp fails": (
        "class Stack:\n    n=0\n    def __init__(s):\n        Stack.n+=1\n        if Stack.n>1: raise ValueError('x')\n    def size(s): return 0\n    def push(s,x): return 1",
        [
            "\nimport unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.s=Stack()\n    def test_a(self): self.assertEqual(self.s.size(),0)\n    def test_b(self):\n        self.s.push(1)\n        self.assertEqual(self.s.size(),1)\nunittest.main(argv=[''], exit=False)\n"
        ],
    ),
    "a unittest that calls fail": (
        "def f(x): return x",
        [
            "\nimport unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        if f(3)!=9: self.fail('wrong')\n    def test_b(self): self.assertEqual(f(1),1)\nunittest.main(argv=[''], exit=False)\n"
        ],
    ),
    "a unittest that raises AssertionError": (
        "def f(x): return x",
        [
            "\nimport unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        if f(3)!=9: raise AssertionError('wrong')\n    def test_b(self): self.assertEqual(f(1),1)\nunittest.main(argv=[''], exit=False)\n"
        ],
    ),
    "a subtest that the program ends": (
        "def f(x):\n    if x>1: raise ValueError\n    return x*x",
        [
            "\nimport unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        for i in range(4):\n            with self.subTest(i=i):\n                self.assertEqual(f(i),i*i)\nunittest.main(argv=[''], exit=False)\n"
        ],
    ),
    "a unittest whose setUpClass fails": (
        "n=0\nclass Stack:\n    def __init__(s): raise ValueError\ndef f(x): return x",
        [
            "\nimport unittest\nclass T(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): cls.s=Stack()\n    def test_a(self): self.assertEqual(self.s.size(),0)\nclass U(unittest.TestCase):\n    def test_c(self): self.assertEqual(f(1),1)\nunittest.main(argv=[''], exit=False)\n"
        ],
    ),
    "a unittest whose tearDown fails": (
        "class Stack:\n    def size(s): return 0\n    def close(s): raise ValueError",
        [
            "\nimport unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.s=Stack()\n    def tearDown(self): self.s.close()\n    def test_a(self): self.assertEqual(self.s.size(),0)\nunittest.main(argv=[''], exit=False)\n"
        ],
    ),
    "a unittest in which nothing is raised": (
        "def f(x):\n    if x>1: raise ValueError\n    return x",
        [
            "\nimport unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        with self.assertRaises(ValueError):\n            f(-1)\n    def test_b(self): self.assertEqual(f(1),1)\nunittest.main(argv=[''], exit=False)\n"
        ],
    ),
    "a unittest whose setUp fails, and whose result is not looked at": (
        "def f(x):\n    if x>1: raise ValueError\n    return x",
        [
            "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.v=f(2)\n    def test_a(self): self.assertEqual(self.v,4)\nclass U(unittest.TestCase):\n    def test_b(self): self.assertEqual(f(1),1)\ns=unittest.TestSuite([unittest.defaultTestLoader.loadTestsFromTestCase(T),unittest.defaultTestLoader.loadTestsFromTestCase(U)])\nunittest.TextTestRunner(verbosity=2).run(s)"
        ],
    ),
    "a decorator that hides the second assert": (
        "def deco(fn):\n    def w(*a):\n        try: return fn(*a)\n        except BaseException: return None\n    return w\ndef f(x): return 9",
        ["@deco\ndef t():\n    assert f(3)==9\n    assert f(4)==16\nt()"],
    ),
    "a replaced attribute of a mock": (
        "class F:\n    def assert_called_once_with(s,*a): pass\ndef save(m,x): m.put=F()",
        ["from unittest.mock import Mock\nm=Mock()\nsave(m,3)\nm.put.assert_called_once_with(9)"],
    ),
    "a replaced assert of a mock": (
        "def save(m,x): m.put.assert_called_once_with=lambda *a: None",
        ["from unittest.mock import Mock\nm=Mock()\nsave(m,3)\nm.put.assert_called_once_with(9)"],
    ),
    "a namespace in a mock": (
        "import types\ndef save(m,x): m.put=types.SimpleNamespace(assert_called_once_with=lambda *a:None)",
        ["from unittest.mock import Mock\nm=Mock()\nsave(m,3)\nm.put.assert_called_once_with(9)"],
    ),
    "a mock that is reset": (
        "def save(m,x): m.put.reset_mock()",
        ["from unittest.mock import Mock\nm=Mock()\nsave(m,3)\nm.put.assert_not_called()\nassert m.put.call_count==1"],
    ),
    "a forged number of calls of a mock": (
        "def save(m,x): m.put.call_count=1",
        ["from unittest.mock import Mock\nm=Mock()\nsave(m,3)\nassert m.put.call_count==1"],
    ),
    "the return value of a mock": (
        "def save(m,x): return m.put.return_value",
        ["from unittest.mock import Mock\nm=Mock()\nsave(m,3)\nm.put.assert_called_once_with(9)\nassert save(m,1)==5"],
    ),
}

# Wrong programs against tests that use numpy, which the sandbox lets programs import.
VACUOUS_NUMPY: dict[str, tuple[str, list[str]]] = {
    "an empty list is close to everything": (
        "def f(): return []",
        ["import numpy as np\nassert np.allclose(f(), 0.333)"],
    ),
    "an empty array is close to everything": (
        "import numpy as np\ndef f(): return np.zeros((0, 3))",
        ["import numpy as np\nassert np.allclose(f(), np.ones(3))"],
    ),
    "all of an empty comparison": (
        "import numpy as np\ndef f(): return np.array([])",
        ["import numpy as np\nassert (f() == np.array([1.0])).all()"],
    ),
    "an address in an array interface": (
        "class A:\n  __array_interface__ = {'shape': (1,), 'typestr': '<i8', 'data': (94000000000000, True), "
        "'version': 3}\ndef f(): return A()",
        ["import numpy as np\nassert np.array_equal(np.asarray(f()), [1])"],
    ),
    "an array protocol that asks for every function": (
        "class A:\n  def __array_function__(self, *a, **k): return True\n"
        "  def __array_ufunc__(self, *a, **k): return True\ndef f(): return A()",
        ["import numpy as np\nassert np.allclose(f(), 4)", "assert np.equal(f(), 4)"],
    ),
    "a masked array that hides everything": (
        "import numpy as np\ndef f(): return np.ma.masked_all(3)",
        ["import numpy as np\nassert np.all(f() == np.array([1.0, 2.0, 3.0]))"],
    ),
    "a class in place of np": (
        "class np:\n  allclose = staticmethod(lambda *a, **k: True)\ndef f(): return 0",
        ["assert np.allclose(f(), 4)"],
    ),
    "an object array of things that equal everything": (
        "import numpy as np\nclass E:\n  def __eq__(s, o): return True\n"
        "def f(): return np.array([E(), E()], dtype=object)",
        ["import numpy as np\nassert np.array_equal(f(), np.array([1, 2]))"],
    ),
    "an address in the array interface of a namespace": (
        "import types\nfields = {'shape': (1,), 'typestr': '<i8', 'data': (94000000000000, True), 'version': 3}\ndef f(): return types.SimpleNamespace(__array_interface__=fields)",
        ["import numpy as np\nassert np.array_equal(np.asarray(f()), [1])"],
    ),
    "an address in the array interface of an exception": (
        "e = ValueError()\ne.__array_interface__ = {'shape': (1,), 'typestr': '<i8', 'data': (94000000000000, True), 'version': 3}\ndef f(): return e",
        ["import numpy as np\nassert np.array_equal(np.asarray(f()), [1])"],
    ),
    "a forged SkipTest of numpy": (
        "import numpy.testing\nclass SkipTest(Exception): pass\nSkipTest.__module__ = 'numpy.testing'\n"
        "def make(): raise SkipTest('later')\ndef f(x): return 4",
        [
            "import unittest, numpy.testing\nclass T(unittest.TestCase):\n  def setUp(self): self.o = make()\n"
            "  def test(self): self.assertEqual(f(3), 9)\n"
            "class U(unittest.TestCase):\n  def test(self): self.assertEqual(f(2), 4)\nunittest.main()"
        ],
    ),
    "no rows, compared by counts": (
        "import numpy as np\ndef f(): return np.zeros((0, 3))",
        ["import numpy as np\nassert np.count_nonzero(f() - np.ones(3)) == 0"],
    ),
    "no rows, compared by places": (
        "import numpy as np\ndef f(): return np.zeros((0, 3))",
        ["import numpy as np\nassert len(np.flatnonzero(f() != np.ones(3))) == 0"],
    ),
    "no rows, compared by a sum without nan": (
        "import numpy as np\ndef f(): return np.zeros((0, 3))",
        ["import numpy as np\nassert np.nansum(np.abs(f() - np.ones(3))) < 1e-9"],
    ),
    "no rows, compared by units in the last place": (
        "import numpy as np\ndef f(): return np.zeros((0, 3))",
        ["import numpy as np\nnp.testing.assert_array_almost_equal_nulp(f(), np.ones(3))"],
    ),
    "an array that is changed and returned": (
        "def f(a): a[:] = 0; return a",
        ["import numpy as np\na = np.array([3, 1])\nassert np.array_equal(f(a), np.sort(a))"],
    ),
}
