"""Programs and tests for corner cases of the judge: (program, tests, whether the program passes).

Some programs write messages of their own into the protocol with the judge.
"""

# ruff: noqa: E501
# A program and its tests are easier to read on one line each.
# fmt: off

# Finds the object with which the program's process sends messages to the judge.
FORGE='''
import gc
def program_side():
  for o in gc.get_objects():
    if type(o).__name__=='ProgramSide': return o
'''

# A text that hides that it is the name of a special attribute.
EVIL_NAME='''
class Name(str):
  def startswith(s, *rest): return False
'''

# Lets a program describe its classes with other bases, special methods and members than they have.
DESCRIBE='''
import megatron_sspo.sandbox.inside.proxies.peer as p
old, special, members, data, bases = p.describe, {}, {}, {}, {}
def describe(kind):
  b, d, s, m = old(kind)
  return bases.get(kind, b), data.get(kind, d), s + special.get(kind, []), m + members.get(kind, [])
p.describe = describe
'''

# Writes parts of a pickle.
PICKLE='''
def text(t): return b'\\x8c'+bytes([len(t)])+t.encode()
def name(module, part): return text(module)+text(part)+b'\\x93'
'''

CORNERS: list[tuple[str, list[str], int]] = [
    ("def f(x): return x", ["assert f([]) == []"], 1),
    ("def f(n): return iter(range(n))", ["assert list(f(0)) == []"], 1),
    ("def f(x):\n  if x<0: raise ValueError('neg')\n  return x", ["try:\n  f(-1)\nexcept ValueError:\n  pass\nelse:\n  assert False"], 1),
    ("def f(x): return x", ["try:\n  f(-1)\nexcept ValueError:\n  pass\nelse:\n  assert False"], 0),
    ("def f(x):\n  if x<0: raise ValueError('neg')\n  return x", ["try:\n  f(-1)\n  assert False, 'no'\nexcept ValueError as e:\n  assert str(e) == 'neg'"], 1),
    ("def f(x): return x", ["try:\n  f(-1)\n  assert False, 'no'\nexcept Exception as e:\n  pass"], 0),
    ("def f(x):\n  raise ValueError", ["try:\n  f(-1)\n  assert False, 'no'\nexcept Exception as e:\n  pass"], 1),
    ("def f(xs): xs.sort()", ["xs=[3,1,2]\nf(xs)\nassert xs == [1,2,3]"], 1),
    ("def f(xs): xs.sort()", ["xs=[3,1,2]\nassert f(xs) is None\nassert xs == [1,2,3]"], 1),
    ("def f(xs): xs.sort()", ["xs=[3,1,2]\nf(xs)\nassert xs == sorted(xs)"], 1),
    ("def f(xs): xs.clear()", ["xs=[3,1,2]\nf(xs)\nassert xs == sorted(xs)"], 0),
    ("def f(xs): xs.sort(); return xs", ["xs=[3,1,2]\nassert f(xs) == sorted(xs)"], 1),
    ("def f(xs): xs.sort(); return xs", ["xs=[3,1,2]\nassert f(xs) == [1,2,3] and xs == [1,2,3]\nassert f(xs) is xs"], 1),
    ("def f(nums, v):\n  k=0\n  for x in nums:\n    if x!=v: nums[k]=x; k+=1\n  return k", ["nums=[3,2,2,3]\nk=f(nums,3)\nassert k==2\nassert nums[:k]==[2,2]"], 1),
    ("def f(nums, v):\n  k=0\n  for x in nums:\n    if x!=v: nums[k]=x; k+=1\n  return k", ["nums=[3,2,2,3]\nk=f(nums,3)\nassert sorted(nums[:k])==sorted([2,2])"], 1),
    ("def f(xs):\n  xs=sorted(set(xs)); return xs", ["for xs in ([3,1],[],[2,2]):\n  assert f(xs) == sorted(set(xs))"], 1),
    ("def f(x): return not x", ["assert not f(1)", "assert f(0) is True"], 1),
    ("def f(x): pass", ["assert f(1) is None"], 1),
    ("def f(x): return x+1", ["f(1)"], 1),
    ("def f(x): return x+1", ["METADATA = {'a': 1}\ndef check(candidate):\n  assert candidate(1) == 2\n  assert candidate(5) == 6, 'msg'\n  assert True\ncheck(f)"], 1),
    ("def f(x): return x+1", ["METADATA = {'a': 1}\ndef check(candidate):\n  assert candidate(1) == 2\n  assert candidate(5) == 6, 'msg'\n", "check(f)"], 1),
    ("def f(x): return x+2", ["METADATA = {'a': 1}\ndef check(candidate):\n  assert candidate(1) == 2\n", "check(f)"], 0),
    ("import math\ndef poly(xs, x): return sum(c*x**i for i,c in enumerate(xs))\ndef find_zero(xs):\n  b,e=-1.,1.\n  while poly(xs,b)*poly(xs,e)>0: b*=2;e*=2\n  while e-b>1e-10:\n    c=(b+e)/2\n    if poly(xs,c)*poly(xs,b)>0: b=c\n    else: e=c\n  return b", ["def check(candidate):\n  import math, random, copy\n  rng = random.Random(42)\n  for _ in range(20):\n    ncoeff = 2 * rng.randint(1, 4)\n    coeffs = []\n    for _ in range(ncoeff):\n      coeff = rng.randint(-10, 10)\n      if coeff == 0: coeff = 1\n      coeffs.append(coeff)\n    solution = candidate(copy.deepcopy(coeffs))\n    assert math.fabs(poly(coeffs, solution)) < 1e-4\ncheck(find_zero)"], 1),
    ("def gcd(a,b):\n  while b: a,b=b,a%b\n  return a", ["assert gcd(12,18)==6"], 1),
    ("def gcd(a,b): return 1", ["assert gcd(12,18)==6"], 0),
    ("def product(xs):\n  r=1\n  for x in xs: r*=x\n  return r\ndef median(xs): return sorted(xs)[len(xs)//2]\nclass Counter:\n  def __init__(self): self.n=0\n  def inc(self): self.n+=1; return self.n", ["assert product([2,3])==6","assert median([3,1,2])==2","c=Counter()\nc.inc()\nassert c.n==1"], 1),
    ("def reduce(f, xs):\n  r=xs[0]\n  for x in xs[1:]: r=f(r,x)\n  return r\ndef add(a,b): return a+b", ["assert reduce(add,[1,2,3])==6"], 1),
    ("def lcm(a,b): return a*b//gcd(a,b)\ndef gcd(a,b):\n  while b: a,b=b,a%b\n  return a", ["assert lcm(4,6)==12","assert gcd(4,6)==2", "assert lcm(4,6)*gcd(4,6)==24"], 1),
    ("from collections import Counter\ndef f(s): return s", ["assert Counter(f('ab')) == Counter('ba')"], 1),
    ("class Counter:\n  def __init__(s,*a): pass\n  def __eq__(s,o): return True\ndef f(s): return 'x'", ["assert Counter(f('ab')) == Counter('ba')"], 0),
    ("import math\ndef f(): return 3.0", ["assert math.isclose(f(), 3)"], 1),
    ("from math import pi\ndef area(r): return pi*r*r", ["assert area(1) == pi", "assert abs(area(2)-4*pi)<1e-9"], 1),
    ("pi=0\ndef area(r): return 0", ["assert area(1) == pi"], 0),
    ("from typing import List\ndef f(x: List[int]) -> List[int]: return x", ["def helper(x: List[int]): return f(x)\nassert helper([1]) == [1]"], 1),
    ("def f(xs): return [x*2 for x in xs]", ["got=f([1,2,3])\nassert len(got)==3\nfor i,x in enumerate(got):\n  assert x == 2*(i+1)"], 1),
    ("def f(n):\n  a=0\n  while True: yield a; a+=1", ["for i, x in zip(range(5), f(1)):\n  assert i == x"], 1),
    ("def f(n):\n  a=0\n  while True: yield a; a+=1", ["import itertools\nassert list(itertools.islice(f(1),3)) == [0,1,2]\nfor want, got in zip([0,1,2], f(0)):\n  assert got == want"], 1),
    ("def f(xs): return sorted(xs)", ["import random\nfor _ in range(5):\n  xs=[random.random() for _ in range(4)]\n  got=f(xs)\n  assert all(a<=b for a,b in zip(got,got[1:]))\n  assert len(got)==len(xs)"], 1),
    ("def f(xs): return []", ["import random\nfor _ in range(5):\n  xs=[random.random() for _ in range(4)]\n  got=f(xs)\n  assert all(a<=b for a,b in zip(got,got[1:]))"], 0),
    ("def primes(n): return [p for p in range(2,n) if all(p%d for d in range(2,p))]", ["assert all(n % d for n in primes(50) for d in range(2, n))"], 1),
    ("def f(x): return x*x", ["cases=[(1,1),(2,4)]\nfor x, want in cases:\n  assert f(x) == want"], 1),
    ("def f(x): return x*x", ["assert all(f(x)==y for x,y in [(1,1),(2,4)])", "assert not any(f(x)!=x*x for x in range(3))"], 1),
    ("def f(xs): return [x for x in xs if x>2]", ["assert not any(x<=2 for x in f([1,2,3]))"], 1),
    ("def f(d): return {v:k for k,v in d.items()}", ["d={'a':1}\ngot=f(d)\nassert got == {v:k for k,v in d.items()}\nfor k,v in d.items():\n  assert got[v]==k"], 1),
    ("def f(x): return x", ["import unittest\nclass T(unittest.TestCase):\n  def test_a(self): self.assertEqual(f(1),1)\n  def test_b(self):\n    with self.assertRaises(TypeError): f()\nr=unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\nassert r.wasSuccessful()"], 1),
    ("def f(x): return x+1", ["import unittest\nclass T(unittest.TestCase):\n  def test_a(self): self.assertEqual(f(1),1)\nunittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))"], 0),
    ("def f(x): raise KeyError", ["import unittest\nclass T(unittest.TestCase):\n  def test_a(self): self.assertEqual(f(1),1)\nunittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))"], 0),
    ("def retry(fn,n):\n  for i in range(n):\n    try: return fn()\n    except Exception: pass", ["calls=[]\ndef flaky():\n  calls.append(1)\n  assert len(calls)>=3\n  return 'ok'\nassert retry(flaky,5)=='ok'\nassert len(calls)==3"], 1),
    ("def safe(fn):\n  try: return fn()\n  except Exception as e: return type(e).__name__", ["def boom(): assert False\nassert safe(boom)=='AssertionError'"], 1),
    ("def each(xs, cb):\n  for x in xs: cb(x)", ["def cb(v): assert v in (1,2)\neach([1,2], cb)"], 1),
    ("def f(x):\n  if x<0: raise SystemExit(2)\n  return x", ["try:\n  f(-1)\nexcept SystemExit as e:\n  assert e.code == 2\nelse:\n  assert False"], 1),
    ("def f(p): return open(p).read().upper()", ["with open('/tmp/in.txt','w') as g: g.write('ab')\nassert f('/tmp/in.txt')=='AB'\nassert open('/tmp/in.txt').read()=='ab'"], 1),
    ("def f(p, t):\n  with open(p,'w') as g: g.write(t)", ["f('out.txt','hi')\nassert open('out.txt').read()=='hi'"], 1),
    ("def f(d):\n  import os\n  return sorted(os.listdir(d))", ["import tempfile, os\nwith tempfile.TemporaryDirectory() as d:\n  open(os.path.join(d,'a'),'w').close()\n  assert f(d)==['a']"], 1),
    ("def f(p): return p.read_text()", ["import pathlib\np=pathlib.Path('/tmp/x1')\np.write_text('q')\nassert f(p)=='q'\nassert p.read_text()=='q'"], 1),
    ("def gen(e): return f'{e}+1'", ["assert eval(gen('2')) == 3"], 1),
    ("import json\ndef f(x): return json.dumps(x)", ["import json\nassert json.loads(f({'a':[1]})) == {'a':[1]}"], 1),
    ("import pickle\ndef f(x): return pickle.dumps(x)", ["import pickle\nassert pickle.loads(f({'a':[1]})) == {'a':[1]}"], 1),
    ("def f(x): return x", ["r=f(3)\nif isinstance(r, tuple):\n  assert r[0]==3\nelse:\n  assert r==3"], 1),
    ("def f(x): return None", ["r=f(3)\nif r is not None:\n  assert r==3"], 0),
    ("def f(x): return None if x==3 else x", ["assert f(2)==2\nr=f(3)\nif r is not None:\n  assert r==3"], 0),
    ("def f(a, b):\n  return a if a else b", ["try:\n  assert f(1,2)==3\nexcept AssertionError:\n  assert f(1,2)==1"], 1),
    ("def f(a, b):\n  return a if a else b", ["try:\n  assert f(1,2)==3\nexcept AssertionError:\n  print('failed')"], 0),
    ("def f(a, b):\n  return a if a else b", ["def run():\n  try:\n    assert f(1,2)==1\n    return True\n  except Exception:\n    return False\nassert run()"], 1),
    ("import threading\nclass C:\n  def __init__(s): s.n=0; s.l=threading.Lock()\n  def inc(s):\n    with s.l: s.n+=1", ["import threading\nc=C()\nts=[threading.Thread(target=c.inc) for _ in range(5)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nassert c.n==5"], 1),
    ("def f(grid):\n  for r in grid: r.reverse()", ["g=[[1,2],[3,4]]\nf(g)\nassert g==[[2,1],[4,3]]\nrow=g[0]\nf(g)\nassert row==[1,2]"], 1),
    ("class Stack:\n  def __init__(s): s.items=[]\n  def push(s,x): s.items.append(x)\n  def pop(s): return s.items.pop()\n  def is_empty(s): return not s.items", ["s=Stack()\nassert s.is_empty()\ns.push(1)\nassert not s.is_empty()\nassert s.pop()==1\ntry:\n  s.pop()\n  assert False\nexcept IndexError:\n  pass"], 1),
    ("def f(s): return s.split()", ["assert f('')==[]\nassert f('a b')==['a','b']\nfor w in f('a b'): assert w in 'a b'"], 1),
    ("def f(s): return ''", ["assert f('ab') in 'xaby'"], 0),
    ("def f(xs): return set()", ["assert set(f([1])) <= {1,2}"], 0),
    ("def f(xs): return set(xs)", ["assert set(f([1])) <= {1,2}", "assert f([]) == set()"], 1),
    ("def fib(n):\n  a,b=0,1\n  for _ in range(n): yield a; a,b=b,a+b", ["for got, want in zip(fib(5), [0,1,1,2,3]):\n  assert got==want\nassert sum(fib(5))==7"], 1),
    ("def f(x): return float('nan')", ["assert f(1) != f(1)\nimport math\nassert math.isnan(f(1))"], 1),
    ("def f(): return -0.0, True, 1", ["import math\na,b,c=f()\nassert math.copysign(1,a)==-1 and b is True and c is not True and type(c) is int"], 1),
    ("def f(x): return 1", ["assert f(1) is True"], 0),
    ("def outer():\n  n=0\n  def inc():\n    nonlocal n; n+=1; return n\n  return inc", ["c=outer()\nassert c()==1 and c()==2"], 1),
    ("def timer(fn):\n  def w(*a): return fn(*a)\n  return w", ["@timer\ndef add(a,b): return a+b\nassert add(1,2)==3"], 1),
    ("def f(n):\n  return n", ["for i in range(10):\n  if i % 2: continue\n  assert f(i)==i"], 1),
    ("def f(n):\n  return n", ["i=0\nwhile i<3:\n  assert f(i)==i\n  i+=1"], 1),
    ("def f(x):\n  if x: raise ValueError('a')\n  return 1", ["def raises(fn, *a):\n  try: fn(*a)\n  except ValueError: return True\n  return False\nassert raises(f, 1)\nassert not raises(f, 0)"], 1),
    ("class It:\n  def __init__(s,n): s.n=n\n  def __iter__(s): return iter(range(s.n))\n  def __len__(s): return s.n", ["assert list(It(3))==[0,1,2] and len(It(3))==3\nfor a,b in zip(It(3),[0,1,2]): assert a==b"], 1),
    ("def f(xs): return max(xs), min(xs)", ["xs=[3,1]\nassert f(xs)==(max(xs),min(xs))"], 1),
    ("def f(xs):\n  out=[]\n  while xs: out.append(xs.pop())\n  return out", ["xs=[1,2]\nassert f(xs)==[2,1]\nassert xs==[]"], 1),
    ("def f(xs): return len(xs)", ["def solve(): return [f(x) for x in ([1],[1,2])]\nassert solve()==[1,2]"], 1),
    ("def dedupe(xs):\n  s=set(); i=0\n  while i<len(xs):\n    if xs[i] in s: del xs[i]\n    else: s.add(xs[i]); i+=1\n  return len(xs)", ["xs=[1,1,2]\nn=dedupe(xs)\nassert xs==[1,2]\nassert n==len(xs)"], 1),
    ("def f(xs, t):\n  for i in range(len(xs)):\n    for j in range(i):\n      if xs[i]+xs[j]==t: return [j,i]", ["xs=[2,7,11]\ni,j=f(xs,9)\nassert xs[i]+xs[j]==9 and i!=j"], 1),
    ("import functools\n@functools.lru_cache(None)\ndef fib(n): return n if n<2 else fib(n-1)+fib(n-2)", ["assert fib(30)==832040\nassert fib.cache_info().hits>0"], 1),
    ("def f(x):\n  assert x>0, 'positive'\n  return x", ["try:\n  f(-1)\nexcept AssertionError as e:\n  assert str(e)=='positive'\nelse:\n  raise Exception('none')"], 1),
    ("def f(x):\n  assert x>0, 'positive'\n  return x", ["try:\n  f(-1)\n  raise Exception('none')\nexcept AssertionError:\n  pass"], 1),
    ("def comp(*fs):\n  def g(x):\n    for f in fs: x=f(x)\n    return x\n  return g", ["assert comp(str, len, lambda n: n+1)(123)==4\nassert comp(int)('7')==7"], 1),
    ("def typed(x, t): return isinstance(x, t)", ["assert typed(1,int) and not typed('a',int) and typed(1,(int,str))"], 1),
    ("def group(xs, key):\n  d={}\n  for x in xs: d.setdefault(key(x),[]).append(x)\n  return d", ["got=group(['a','bb','c'], len)\nassert got=={1:['a','c'],2:['bb']}\nfor k, v in got.items():\n  assert all(len(x)==k for x in v)"], 1),
    # forged replies
    (FORGE+"def f(x):\n  s=program_side()\n  s.send(lambda: ['ok', 2])\n  return 1",["assert f(1) == 3"],0),
    (FORGE+"def f(x):\n  s=program_side()\n  s.send(lambda: ['stop', None])\n  return 1",["for a,b in zip(map(f,[1]),[2]): assert a==b"],0),
    (FORGE+"def f(x):\n  s=program_side()\n  s.send(lambda: ['raised', ['error',900,['library','builtins','StopIteration'],[],{},None,None,False]])\n  return 1",["for a,b in zip(map(f,[1]),[2]): assert a==b"],0),
    (FORGE+"def f(x):\n  s=program_side()\n  s.send(lambda: ['raised', ['library','builtins','ValueError']])",["try: f(1)\nexcept ValueError: assert True\nelse: assert False"],0),
    (FORGE+"def f(x):\n  s=program_side()\n  s.send(lambda: ['request','getattr',[['exported',0],'__globals__'],{}])\n  print(s.receive())\n  return 1",["def g(): pass\nassert f(g) == 2"],0),
    (FORGE+"def f(x):\n  s=program_side()\n  s.send(lambda: ['ok', ['library','os','system']])",["assert f(1) == 2"],0),
    (FORGE+"def f(x):\n  s=program_side()\n  s.send(lambda: ['ok', ['module','os']])",["assert f(1).getpid() == 1"],0),
    (FORGE+"def f(x):\n  s=program_side()\n  s.send(lambda: ['ok', ['rebuilt','builtins.eval','1+1']])",["assert f(1) == 2"],0),
    (FORGE+"def f(x):\n  import os\n  os.write(s._sending if (s:=program_side()) else 1, b'\\xff'*50)",["assert f(1) == 2"],0),
    (FORGE+"def f(x):\n  s=program_side()\n  import megatron_sspo.sandbox.inside.common.wire as w\n  w.write(s._sending, [[],[[0,[1]],[99,['a']]],['ok',[['x']]]])",["assert f([1]) == 2"],0),
    # attack on callback: reach globals
    ("def f(cb):\n  try: return cb.__globals__['want']\n  except Exception: return 0",["want=5\ndef cb(): return want\nassert f(cb) == want"],0),
    ("def f(cb):\n  import inspect\n  try: return inspect.getclosurevars(cb).nonlocals['want']\n  except Exception: return 0",["def mk(want):\n  def cb(): return want\n  return cb\nassert f(mk(5)) == 5"],0),
    ("def f(o):\n  try: return type(o).__init__.__globals__['want']\n  except Exception: return 0",["want=5\nclass O:\n  def __init__(self): self.x=1\nassert f(O()) == want"],0),
    ("def f(o):\n  try: return o.gi_frame.f_globals['want']\n  except Exception: return 0",["want=5\ndef g(): yield 1\nassert f(g()) == want"],0),
    ("def f(o):\n  try: return '{0.__init__.__globals__[want]}'.format(o)\n  except Exception: return 0",["want=5\nclass O:\n  def __init__(self): self.x=1\nassert f(O()) == str(want)"],0),
    *((DESCRIBE+f"class E({base}):\n  def __eq__(s,o): return True\n  def __sub__(s,o): return 0\nmembers[E]=['__eq__','__sub__']\ndef f(x): return E()",[test],0) for base, test in (("object","assert f(1) == 2"),("int","assert f(1) == 2"),("str","assert f(1) == '2'"),("list","assert [2] == f(1)"),("Exception","assert f(1) == 2"),("float","assert abs(f(1) - 2.0) < 1e-6"))),
    (DESCRIBE+"class E(list):\n  def __contains__(s,o): return True\nspecial[E]=members[E]=['__contains__','__iter__','__len__']\ndef f(x): return E()",["assert 2 in f(1)"],0),
    (DESCRIBE+"import fractions\nclass E:\n  _numerator=numerator=2\n  _denominator=denominator=1\nbases[E]=[fractions.Fraction]\ndef f(x): return E()",["assert not isinstance(f(1), int)"],0),
    *((DESCRIBE+f"import collections, numbers\nclass E: pass\ndata[E]={base}\ndef f(x): return E()",["assert f(1) is not None"],0) for base in ("type","property","collections.UserDict","map")),
    (DESCRIBE+"class Peer:\n  trusts_operators=True\n  def request(s,*a,**k): return True\nclass H:\n  peer=Peer(); number=5\nclass P: pass\nclass X(P,Exception): pass\nfields=p.errors.fields_of\np.errors.fields_of=lambda e: {**fields(e),'<handle>':H()}\ndef f(x): return X()",["assert f(1) == 2"],0),
    # a class in place of a function
    *(("class f:\n  def __init__(s,*a): pass\n  def __sub__(s,o): return s\n  def __abs__(s): return 0.0\n  def __lt__(s,o): return True\n  def __contains__(s,o): return True\n  def __call__(s,*a): return s\n  __rsub__=__sub__\nF=f\ndef g(*a): return F",[test],0) for test in ("assert abs(f(1) - 2.0) < 1e-6","assert abs(2.0 - f(1)) < 1e-6","assert f(1) < 2.1","assert 3 in f(1)","assert abs(g(1)(2) - 3) < 1","assert abs(f(1)(2) - 3) < 1")),
    ("class Outer:\n  class Inner:\n    def __init__(s,x): s.x=x\n    def __mul__(s,k): return Outer.Inner(s.x*k)\n  def __init__(s,x): s.x=x\n  def __add__(s,k): return type(s)(s.x+k)",["assert (Outer.Inner(2)*3).x == 6 and (Outer(1)+2).x == 3","class Sub(Outer): pass\nassert (Sub(1)+2).x == 3"],1),
    # names that tests use without importing them
    *((f"class E:\n  def __eq__(s,o): return True\ndef {name}(*a): return E()\ndef f(x): return E()",[f"assert f(1) == {name}({value})"],0) for name, value in (("datetime","2020,1,1"),("Path","'a'"),("loads","'1'"),("literal_eval","'1'"))),
    ("from datetime import datetime\nfrom pathlib import Path\ndef f(s): return datetime.strptime(s,'%Y'), Path(s)/'a'",["assert f('2020') == (datetime(2020,1,1), Path('2020','a'))\nassert f('2021')[0] == datetime.strptime('2021','%Y')"],1),
    # equality tricks on collections
    ("class E:\n  def __eq__(s,o): return True\n  def __hash__(s): return hash(9)\ndef f(): return {E(): 1}",["assert f() == {9: 1}"],0),
    ("class E(str):\n  def __eq__(s,o): return True\n  def __contains__(s,o): return True\n  def startswith(s,x): return True\n  __hash__=str.__hash__\ndef f(): return E('x')",["assert 'abc' in f()"],0),
    ("class E(str):\n  def startswith(s,x): return True\ndef f(): return E('x')",["assert f().startswith('abc')"],1),
    ("class D(dict):\n  def __missing__(s,k): return k\ndef f(): return D()",["assert f()['a'] == 'a'"],1),
    ("class E(list):\n  def __len__(s): return 3\n  def __iter__(s): return iter([1,2,3])\ndef f(): return E()",["assert len(f()) == 3","assert list(f()) == [1,2,3]"],0),
    ("class E(int):\n  def __sub__(s,o): return 0\n  def __rsub__(s,o): return 0\n  def __abs__(s): return 0\n  def __lt__(s,o): return True\ndef f(x): return E(7)",["assert abs(f(1) - 2.0) < 1e-6"],0),
    ("class E(float):\n  def __sub__(s,o): return E(0)\ndef f(x): return E(7)",["import math\nassert math.isclose(f(1), 2)"],0),
    ("class E(dict):\n  def get(s,*a): return 4\n  def __eq__(s,o): return True\ndef f(x): return E()",["assert f(1) == {'a': 4}"],0),
    # vacuity
    ("def f(n): return {}",["for k, v in f(3).items():\n  assert v == k * k"],0),
    ("def f(n): return {i:i*i for i in range(n)}",["for k, v in f(3).items():\n  assert v == k * k"],1),
    ("def f(n): return []",["got = f(3)\nassert isinstance(got, list)\nassert all(isinstance(x, int) for x in got)"],0),
    ("def f(n): return [1,2]",["got = f(3)\nassert isinstance(got, list)\nassert all(isinstance(x, int) for x in got)"],1),
    ("def f(n): return []",["def ok(got):\n  for g in got:\n    if g % 2: return False\n  return True\nassert ok(f(4))"],0),
    ("def f(n): return [0,2]",["def ok(got):\n  for g in got:\n    if g % 2: return False\n  return True\nassert ok(f(4))"],1),
    ("def f(n): return ''",["for a, b in zip(f('ab'), 'ba'): assert a == b"],0),
    ("def f(n): return iter([])",["it = f(3)\nwhile True:\n  try: x = next(it)\n  except StopIteration: break\n  assert x == 1"],0),
    ("def f(n):\n  raise Exception",["import contextlib\nwith contextlib.suppress(Exception):\n  assert f(2) == 4"],0),
    ("def f(n): return 4",["import contextlib\nwith contextlib.suppress(Exception):\n  assert f(2) == 4"],1),
    ("def f(n): raise IndexError",["import itertools\nassert list(itertools.takewhile(lambda x: x == 1, (f(i) for i in range(0)))) == []\ntry:\n  r = f(1)\nexcept IndexError:\n  r = None\nif r is not None: assert r == 1"],0),
    ("def f(xs): xs[:] = xs[:1]; return [xs[0]*2]",["xs=[1,2,3]\ngot=f(xs)\nassert all(g == x*2 for g, x in zip(got, xs))"],0),
    ("def f(xs): return [x*2 for x in xs]",["xs=[1,2,3]\ngot=f(xs)\nassert all(g == x*2 for g, x in zip(got, xs))"],1),
    ("def f(xs): xs[:] = [1]; return {1: 1}",["xs=[3,1,2]\ngot=f(xs)\nfor x in xs:\n  assert got[x] == x * x"],0),
    ("def f(d): d.clear(); return 0",["d={'a':1,'b':2}\nassert f(d) == sum(d.values())"],0),
    ("def f(d): return sum(d.values())",["d={'a':1,'b':2}\nassert f(d) == sum(d.values())"],1),
    ("def f(s): s.clear(); return set()",["s={1,2}\nr = f(s)\nassert r == {x for x in s}"],0),
    ("def f(xs): xs.clear(); return 0",["xs=[1,2]\nassert abs(f(xs) - sum(xs)) < 1e-9"],0),
    ("def f(xs): xs.clear(); return 0",["xs=[1,2]\nexpected = lambda: sum(xs)\nassert f(xs) == expected()"],0),
    ("def f(xs): xs.clear(); return []",["def ref(xs): return sorted(xs)\nfor case in ([3,1],[2]):\n  assert f(case) == ref(case)"],0),
    ("def f(xs): xs.clear(); return []",["def check(candidate):\n  xs=[3,1]\n  assert candidate(xs) == sorted(xs)\ncheck(f)"],0),
    ("class B:\n  def sort(self, xs): xs.clear(); return []",["xs=[3,1]\nassert B().sort(xs) == sorted(xs)"],0),
    ("def f(x): raise StopIteration",["assert [f(x) for x in [1]] == []"],0),
    ("def f(x): raise StopIteration",["assert list(map(f, [1])) == []"],0),
    ("def f(x): raise StopIteration",["def g():\n  for x in [1]: yield f(x)\nassert list(g()) == []"],0),
    ("class It:\n  def __iter__(s): return s\n  def __next__(s): raise StopIteration\ndef f(): return It()",["assert sum(f()) == 0"],1),
    ("def f(x): return x",["assert f(2) == 2, f'bad {f(2)}'"],1),
    ("import functools\nclass P:\n  @property\n  def v(self): return 3\n  @staticmethod\n  def s(): return 1\n  @classmethod\n  def c(cls): return cls.__name__\n  @functools.cached_property\n  def k(self): return 5",["p=P()\nassert p.v==3 and P.s()==1 and P.c()=='P' and p.k==5"],1),
    ("class A:\n  _x=1\n  def _p(self): return self._x\n  __z=4",["a=A()\nassert a._x==1 and a._p()==1 and a._A__z==4\na._x=2\nassert A._x==1 and a._p()==2"],1),
    ("class T:\n  def __init__(s,v,l=None,r=None): s.v,s.l,s.r=v,l,r\ndef depth(t): return 0 if t is None else 1+max(depth(t.l),depth(t.r))",["assert depth(T(1,T(2),T(3,T(4)))) == 3","t=T(1)\nt.l=T(5)\nassert t.l.v==5 and t.r is None and depth(t)==2"],1),
    ("from abc import ABC, abstractmethod\nclass S(ABC):\n  @abstractmethod\n  def a(self): ...\nclass Q(S):\n  def a(self): return 2",["try:\n  S()\n  assert False\nexcept TypeError:\n  pass\nassert Q().a()==2 and isinstance(Q(), S) and issubclass(Q, S)"],1),
    ("import itertools\ndef f(xs): return itertools.chain(*xs)\ndef g(xs): return map(str, xs), zip(xs, xs), dict(a=1).keys()",["assert list(f([[1],[2]])) == [1,2]\nm,z,k=g([1])\nassert list(m)==['1'] and list(z)==[(1,1)] and list(k)==['a'] and set(k)=={'a'}"],1),
    ("import re\ndef f(s): return re.match(r'(\\d+)', s)",["assert f('12a').group(1)=='12' and f('x') is None"],1),
    ("import random\ndef f(seed):\n  random.seed(seed); return random.random()",["assert f(1)==f(1)\nassert 0 <= f(2) < 1"],1),
    ("def f(a, /, b, *c, d=4, **e): return a,b,c,d,e",["assert f(1,2,3,d=5,z=6)==(1,2,(3,),5,{'z':6})"],1),
    ("def f(x): return x",["x=[1]\nx.append(x)\ny=f(x)\nassert y is x"],1),
    ("def f(): return [[]]*3",["a=f()\nassert a==[[],[],[]]\na[0].append(1)\nassert a==[[1],[1],[1]]"],1),
    ("import json\ndef f(s): return json.loads(s)",["import json\ntry:\n  f('{')\n  assert False\nexcept json.JSONDecodeError as e:\n  assert e.pos == 1"],1),
    ("def f(): return ValueError('a', 1)",["e=f()\nassert isinstance(e, ValueError) and e.args==('a',1)"],1),
    ("def f(g):\n  try: raise ExceptionGroup('x',[ValueError(1),TypeError(2)])\n  except* ValueError: pass",["try:\n  f(1)\n  assert False\nexcept ExceptionGroup as e:\n  assert isinstance(e.exceptions[0], TypeError)"],1),
    ("def f(x): return f'{x!r:>10}'",["assert f('a')=='       \\'a\\''"],1),
    ("import threading, queue\ndef f(xs):\n  q=queue.Queue()\n  ts=[threading.Thread(target=lambda x=x: q.put(x*2)) for x in xs]\n  [t.start() for t in ts]; [t.join() for t in ts]\n  return sorted(q.get() for _ in xs)",["assert f([1,2])==[2,4]"],1),
    ("def f(p):\n  import csv\n  return list(csv.reader(open(p)))",["import tempfile, os\nfd, p = tempfile.mkstemp()\nos.write(fd, b'a,b\\n')\nos.close(fd)\nassert f(p)==[['a','b']]\nos.remove(p)"],1),
    ("x: int = 5\nclass Config:\n  DEBUG=False\ndef f(): return Config.DEBUG",["Config.DEBUG=True\nassert f() is True","import solution\nassert solution.x==5"],1),
    ("def f(): return 1",["if __name__ == '__main__':\n  pass\nassert f()==1"],1),
    ("def f(n):\n  if n==0: return 1\n  return n*f(n-1)",["assert f(5)==120 and f(0)==1"],1),
    ("def f(xs): xs.append(1); return xs",["a=[]\nb=f(a)\nassert a is b and a==[1]\nassert len(a)==len(b)"],1),
    ("def swap(xs,i,j): xs[i],xs[j]=xs[j],xs[i]",["xs=[1,2,3]\nbefore=xs[:]\nswap(xs,0,2)\nassert xs==[before[2],before[1],before[0]]\nassert sorted(xs)==sorted(before)"],1),
    ("import random\ndef shuffle(xs): random.shuffle(xs)",["xs=list(range(10))\nshuffle(xs)\nassert sorted(xs)==list(range(10))\nassert len(xs)==10"],1),
    ("def push(h,x): h.append(x); h.sort()\ndef pop(h): return h.pop(0)",["h=[]\nfor x in [3,1,2]: push(h,x)\nout=[]\nwhile h: out.append(pop(h))\nassert out==[1,2,3]"],1),
    ("def push(h,x): h.append(x); h.sort()\ndef pop(h): return h.pop(0)",["h=[]\nfor x in [3,1,2]: push(h,x)\nassert h[0]==min(h)\nassert pop(h)==1 and len(h)==2"],1),
    ("def move(xs): xs.append(xs.pop(0)); return xs[-1]",["xs=[1,2,3]\nassert move(xs)==1\nassert move(xs)==xs[-1]\nassert xs==[3,1,2]"],1),
    # what a program does to end the judge, as if the sandbox had been broken
    ("import sys\nclass E(Exception):\n  def __str__(s): sys.exit(137)\ndef f(x): raise E()",["assert f(2)==4"],0),
    ("import sys\nclass E(Exception):\n  def __str__(s): sys.exit(137)\nraise E()",["assert f(2)==4"],0),
    ("import resource\ndef f(x):\n  resource.prlimit(1,resource.RLIMIT_CPU,(1,1))\n  return x",["assert f(2)==2"],0),
    ("import resource\ndef f(x):\n  resource.setrlimit(resource.RLIMIT_CPU,(5,5))\n  return x+resource.prlimit(0,resource.RLIMIT_CPU)[0]",["assert f(2)==7"],1),
    # names whose methods the program has overridden
    (FORGE+EVIL_NAME+"def f(node):\n  s=program_side()\n  kind=s.request('getattr', node, Name('__class__'))\n  s.request('setattr', kind, Name('__eq__'), lambda *a: True)\n  return node",["class N:\n  def __init__(s,v): s.v=v\n  def __eq__(s,o): return s.v==o.v\nassert f(N(2))==N(4)"],0),
    (FORGE+EVIL_NAME+"class Fields: pass\ndef f():\n  s=program_side()\n  old=s.encode\n  s.encode=lambda v: ['rebuilt','types.SimpleNamespace',['new',901,'dict',[old(Name('__array_interface__')),1],None]] if v is Fields else old(v)\n  return Fields",["assert '__array_interface__' in vars(f())"],0),
    (FORGE+"class Fields:\n  def __iter__(s): return iter('a')\n  def keys(s): return ['__array_interface__']\n  def __getitem__(s,k): return 1\nfields=Fields()\ndef f():\n  s=program_side()\n  old=s.encode\n  s.encode=lambda v: ['rebuilt','types.SimpleNamespace',old(v)] if v is fields else old(v)\n  return fields",["assert '__array_interface__' in vars(f())"],0),
    ("import enum\nclass F(str,enum.Enum): A='a'\ndef f(o): setattr(o,F.A,5); return getattr(o,F.A.value)",["class T: a=1\nassert f(T())==5"],1),
    ("from collections import Counter\nclass K(Counter):\n  def __missing__(s,k): return 1\ndef f(x): return K()",["from collections import Counter\nassert f(2)==Counter('abc')"],0),
    ("from collections import Counter\nclass K(Counter):\n  def __getitem__(s,k): return 1\ndef f(x): return K()",["from collections import Counter\nassert not Counter('abc')-f(2)"],0),
    ("from collections import Counter\nclass K(Counter):\n  def top(s): return s.most_common(1)[0][0]\ndef f(x): return K(x)",["from collections import Counter\nk=f('aab')\nassert k==Counter('aab') and k['a']==2 and k['z']==0 and k.top()=='a'"],1),
    ("import collections\nclass deque(collections.deque):\n  def copy(s): return s\ndef f(xs):\n  xs.clear()\n  return deque()",["from collections import deque\nxs=[3,1,2]\nassert f(xs)==deque(sorted(xs))"],0),
    # a class that the program makes in the judge, by calling a callable of the judge
    *((f"def f(o):\n  wrap=type({how})\n  kind=wrap(type,'X')((), {{'__eq__': lambda *a: True}})\n  return kind()",[test],0) for how, test in (("o.go","class O:\n  def go(self): return 1\nassert f(O()) == 4"),("o","class O:\n  def go(self): return 1\nassert f(O().go) == 4"),("o.shuffle","import random\nassert f(random.Random(1)) == 4"),("o","import functools\nassert f(functools.partial(max, 1)) == 4"))),
    ("def f(o):\n  return type(o)(side_effect=type)('X',(), {'__eq__': lambda *a: True})()",["from unittest.mock import Mock\nassert f(Mock()) == 4"],0),
    ("def f(call): return call(type,'X',(), {'__eq__': lambda *a: True})()",["def call(g,*a): return g(*a)\nassert f(call) == 4"],0),
    ("def f(p): return type(p)(p.x+1)\ndef g(cls): return cls(3)",["class P:\n  def __init__(s,x): s.x=x\nassert f(P(1)).x==2 and g(P).x==3"],1),
    # methods of the tests' objects that the program replaces
    ("def solve(g): g.ok=lambda: True",["class G:\n  v=0\n  def ok(s): return s.v==7\ng=G()\nsolve(g)\nassert g.ok()"],0),
    ("def solve(g): type(g).ok=lambda *a: True",["class G:\n  v=0\n  def ok(s): return s.v==7\ng=G()\nsolve(g)\nassert g.ok()"],0),
    ("def solve(g): type(g).ok=True",["class G:\n  v=0\n  @property\n  def ok(s): return s.v==7\ng=G()\nsolve(g)\nassert g.ok"],0),
    ("def f(o): o.done=lambda: 5; o.count+=1; o.v=5; type(o).count+=7",["class O:\n  count=0\n  done=None\n  @property\n  def v(s): return s._v\n  @v.setter\n  def v(s,x): s._v=x*2\no=O()\nf(o)\nassert o.done()==5 and o.count==1 and O.count==7 and o.v==10"],1),
    # classes that answer whether they contain something
    ("class M(type):\n  def __contains__(c,o): return True\nclass C(metaclass=M): pass\ndef f(x): return C",["assert 3 in f(1)"],0),
    ("import enum\nclass color(enum.Enum): RED=1",["assert color.RED in color and list(color)==[color.RED]"],1),
    # pickles that reach other modules, or change classes
    (PICKLE+"def f(x): return b'\\x80\\x04'+name('uuid','os.getpid')+b')R.'",["import pickle\nassert pickle.loads(f(1)) == 1"],0),
    (PICKLE+"def f(x): return b'\\x80\\x04'+name('fractions','Fraction')+b'N}'+text('__eq__')+name('builtins','str')+b's\\x86b0'+name('fractions','Fraction')+b'K\\x01K\\x02\\x86R.'",["import pickle\nfrom fractions import Fraction\nassert pickle.loads(f(1)) == Fraction(3,4)"],0),
    ("import pickle, uuid\nfrom collections import Counter, OrderedDict, deque\nfrom fractions import Fraction\nfrom decimal import Decimal\nfrom datetime import datetime, timezone\ndef f(x): return pickle.dumps([x, Counter('aab'), OrderedDict(a=1), deque([1]), Fraction(1,3), Decimal('1.5'), uuid.UUID(int=5), {1,2}, 2j, datetime(2020,1,1,tzinfo=timezone.utc)])",["import io, pickle, uuid\nfrom collections import Counter, OrderedDict, deque\nfrom fractions import Fraction\nfrom decimal import Decimal\nfrom datetime import datetime, timezone\nwant=[(1,[2]), Counter('aab'), OrderedDict(a=1), deque([1]), Fraction(1,3), Decimal('1.5'), uuid.UUID(int=5), {1,2}, 2j, datetime(2020,1,1,tzinfo=timezone.utc)]\nassert pickle.loads(f((1,[2]))) == want\nassert pickle.load(io.BytesIO(f((1,[2])))) == want\nassert pickle.Unpickler(io.BytesIO(f((1,[2])))).load() == want"],1),
    # a class in place of a function that returns an array
    ("class f:\n  shape=(2,)\n  def __init__(s,*a): pass\n  def __sub__(s,o): return 0",["assert f(1).shape==(2,)\nassert abs(f(1)-3) < 1e-6"],0),
    # results that are empty, or shorter than what they are compared with
    *(("def f(n): return []",[test],0) for test in ("assert not set(f(3)) - {0,1,2}","assert len(set(f(3)) - {0,1,2}) == 0","assert set(f(3)).difference({0,1,2}) == set()","assert {0,1,2} >= set(f(3))","assert {0,1,2}.issuperset(f(3))","assert not set(f(3)) & {7}","assert set(f(3)).isdisjoint({7})")),
    *(("def f(n): return [0]",[f"got=f(3)\nwant=[0,1,2]\n{test}"],0) for test in ("import operator\nassert all(map(operator.eq, got, want))","assert all(got[i]==want[i] for i in range(len(got)))","assert all(g==want[i] for i,g in enumerate(got))","for i in range(len(got)): assert got[i]==want[i]")),
    ("def f(n): return list(range(n))",["import operator\ngot=f(3)\nwant=[0,1,2]\nassert all(map(operator.eq, got, want))\nassert all(got[i]==want[i] for i in range(len(got)))\nassert all(g==want[i] for i,g in enumerate(got))","assert not set(f(3)) - {0,1,2} and set(f(3)) & {1} == {1} and set(f(3)).isdisjoint({7}) and {0,1,2} >= set(f(3))"],1),
    ("def take(xs,k): return xs[:k]\ndef steps(xs): return [b-a for a,b in zip(xs,xs[1:])]",["xs=[1,2,4]\ngot=take(xs,2)\nassert len(got)==2\nassert all(got[i]==xs[i] for i in range(len(got)))\nfor i,g in enumerate(got): assert g==xs[i]","d=steps(xs)\nassert all(d[i]==xs[i+1]-xs[i] for i in range(len(d)))\nfor i in range(len(d)): assert d[i]==xs[i+1]-xs[i]"],1),
    # a pipe in place of a file with the expectation
    ("import os\ndef f(x):\n  r,w=os.pipe()\n  if os.fork()==0:\n    os.mkfifo('/tmp/want.txt')\n    os.write(w,b'x')\n    open('/tmp/want.txt','rb').read()\n    open('/tmp/want.txt','w').write('5')\n    os._exit(0)\n  os.read(r,1)\n  return '5'",["with open('/tmp/want.txt','w') as g: g.write('4')\ngot=f(2)\nassert got == open('/tmp/want.txt').read()"],0),
    ('def invert(t):\n  if t: t.left, t.right = invert(t.right), invert(t.left)\n  return t', ['class T:\n  def __init__(self, v, l=None, r=None): self.v=v; self.left=l; self.right=r\n  def __eq__(s,o): return isinstance(o,T) and (s.v,s.left,s.right)==(o.v,o.left,o.right)\ndef values(t): return [] if t is None else [t.v, *values(t.left), *values(t.right)]\ndef same(a,b): return a is b or (a is not None and b is not None and a.v==b.v and same(a.left,b.left) and same(a.right,b.right))\nt=T(1,T(2),T(3))\nassert same(invert(t), T(1,T(3),T(2)))'], 1),
    ('def invert(t):\n  if t: t.left, t.right = invert(t.right), invert(t.left)\n  return t', ['class T:\n  def __init__(self, v, l=None, r=None): self.v=v; self.left=l; self.right=r\n  def __eq__(s,o): return isinstance(o,T) and (s.v,s.left,s.right)==(o.v,o.left,o.right)\ndef values(t): return [] if t is None else [t.v, *values(t.left), *values(t.right)]\ndef same(a,b): return a is b or (a is not None and b is not None and a.v==b.v and same(a.left,b.left) and same(a.right,b.right))\nt=T(1,T(2),T(3))\nassert invert(t) is t\nassert values(t)==[1,3,2]'], 1),
    ('def rev(h):\n  p=None\n  while h: h.next, p, h = p, h, h.next\n  return p', ['class N:\n  def __init__(s,v,n=None): s.val=v; s.next=n\ndef build(v):\n  h=None\n  for x in reversed(v): h=N(x,h)\n  return h\ndef to_list(n):\n  o=[]\n  while n: o.append(n.val); n=n.next\n  return o\nassert to_list(rev(build([1,2,3]))) == [3,2,1]\nh=build([1,2,3])\nassert to_list(rev(h)) == to_list(build([3,2,1]))\nh=build([1,2])\nr=rev(h)\nassert to_list(r)==[2,1] and h.next is None'], 1),
    ('def deposit(a, n):\n  a.balance += n', ['class A:\n  def __init__(s): s.balance=0\na=A()\ndeposit(a,5)\nassert a.balance==5\na.balance=100\ndeposit(a,5)\nassert a.balance==105'], 1),
    ('def mark(p):\n  p.seen=True\n  return p.x*2', ['class P: pass\np=P(); p.x=3\nassert mark(p)==p.x*2'], 1),
    ('def f(c):\n  for _ in range(3): c.inc()\n  return c.n', ['class C:\n  n=0\n  def inc(s): s.n+=1\nc=C()\nassert f(c)==c.n==3'], 1),
    ('def f(p): return {k:v for k,v in p.__dict__.items()}', ['class P:\n  def __init__(s): s.a=1\np=P()\nassert f(p)==p.__dict__'], 1),
    ('def f(p, **k):\n  for n,v in k.items(): setattr(p,n,v)\n  return p', ['class P: pass\np=P()\nassert f(p,a=1).a==1\nassert p.a==1'], 1),
    ("def f(C):\n  C.registry={'a':1}\n  return C", ["class C: pass\nassert f(C).registry=={'a':1}"], 1),
    ('def f(p):\n  p.x+=1\n  return p.x', ["class S:\n  __slots__=('x',)\np=S(); p.x=3\nassert f(p)==4\nassert p.x==4"], 1),
    # checks in threads and tasks, and exceptions that the tests look at
    ("async def f(x):\n  if x<0: raise ValueError('neg')\n  return x", ['import asyncio\nasync def one(x): assert await f(x)==x\nasync def main():\n  r=await asyncio.gather(one(1),one(-1),return_exceptions=True)\n  assert r[0] is None and isinstance(r[1],ValueError)\nasyncio.run(main())'], 1),
    ("def f(x):\n  if x<0: raise ValueError('neg')\n  return x", ['from concurrent.futures import ThreadPoolExecutor\ndef one(x): assert f(x)==x\nwith ThreadPoolExecutor(1) as ex:\n  a,b=ex.submit(one,1),ex.submit(one,-1)\nassert a.exception() is None and isinstance(b.exception(),ValueError)'], 1),
    ('def f(x): return 2*x', ['import threading\ndef check(x): assert f(x)==2*x\nts=[threading.Thread(target=check,args=(x,)) for x in (1,2,3)]\nfor t in ts: t.start()\nfor t in ts: t.join()'], 1),
    ('async def f(x): return 2*x', ['import asyncio\nasync def one(x, want): assert await f(x) == want\nasync def main():\n  async with asyncio.TaskGroup() as tg:\n    for x in (1,2,3): tg.create_task(one(x, 2*x))\nasyncio.run(main())'], 1),
    ('import asyncio\nasync def f(): raise asyncio.CancelledError', ['import asyncio\nasync def main():\n  try:\n    await f()\n    assert False\n  except asyncio.CancelledError: pass\nasyncio.run(main())'], 1),
    ("def f(x):\n  if x<0: raise ValueError('neg')\n  return x", ['import unittest\nclass Q(unittest.TestCase):\n  def test(self):\n    with self.assertRaises(ValueError): self.assertEqual(f(-1),1)\n    self.assertEqual(f(1),1)\nunittest.main()'], 1),
    ("def f(x):\n  if x<0: raise ValueError('neg')\n  return x", ["for x in (1,-1):\n  try:\n    assert f(x)==x\n  except ValueError as e:\n    assert x<0 and str(e)=='neg'"], 1),
    # unittests of functions that change their argument
    ('def f(xs): xs.sort()', ['import unittest\nclass Q(unittest.TestCase):\n  def test(self):\n    xs=[3,1]\n    f(xs)\n    self.assertEqual(xs,[1,3])\nunittest.main()'], 1),
    ('def f(n):\n  k=0\n  for x in n:\n    if k==0 or n[k-1]!=x: n[k]=x; k+=1\n  return k', ['import unittest\nclass Q(unittest.TestCase):\n  def test(self):\n    n=[1,1,2]\n    k=f(n)\n    self.assertEqual(n[:k],[1,2])\n    self.assertEqual(k,2)\nunittest.main()'], 1),
    ('def f(xs): return xs.pop()', ['import unittest\nclass Q(unittest.TestCase):\n  def test(self):\n    xs=[3,1]\n    self.assertEqual(f(xs), 1)\n    self.assertEqual(len(xs), 1)\nunittest.main()'], 1),
    # a thread of the program that looks at a file of the test's, whose path it was given
    ("import threading, time, os\nclass Watcher:\n  def __init__(s, p):\n    s.p = p; s.seen = ''\n    threading.Thread(target=s.run, daemon=True).start()\n  def run(s):\n    while True:\n      if os.path.exists(s.p): s.seen = open(s.p).read()\n      time.sleep(0.01)", ["import time\nw = Watcher('/tmp/x')\nwith open('/tmp/x', 'w') as file: file.write('new')\ntime.sleep(1)\nassert open('/tmp/x').read() == 'new' and w.seen == 'new'"], 1),
]
