"""Programs that pretend to pass `assert f(1) == 2`, and do not compute it."""

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
