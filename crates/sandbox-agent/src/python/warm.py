"""Exercises the driver in the zygote, so that workers start with everything loaded and compiled.

A first compilation initialises types and a first exception imports modules; done here, once, no
worker pays for it.
"""

import base64
import gc
import io
import json

DUMMY = """
import json
print("warm", file=SCRATCH)
class Warm(Exception): pass
def fail(): raise Warm("up")
async def wait(): return [f"{x:>3}" for x in range(3)]
try: fail()
except Warm as error: caught = error
json.dumps({"a": [1, 2.5, None, "x"]})
"""
PARTS = ("codec", "cell", "streams", "driver", "errors", "variables", "rich", "magics", "hooks")


def warm(sources):
    for name in PARTS:
        load(name)
    compile(sources["inline"], "inline", "exec", dont_inherit=True)
    compile(sources["awaits"], "awaits", "exec", dont_inherit=True)
    run_dummy()
    gc.collect()
    gc.freeze()


def run_dummy():
    cell = load("cell")
    cells = cell["Cells"].__new__(cell["Cells"])
    cells.flags = 0
    run = type("Run", (), {"code": DUMMY + "caught", "filename": "<warm>"})
    namespace = {"SCRATCH": io.StringIO()}
    value = None
    for code, _ in cells.compile(run):
        value = eval(code, namespace)
    load("errors")["describe"](value, "<warm>")
    repr(value)
    base64.b64encode(b"warm")
    json.JSONDecoder().decode('{"a": [1, "x"]}')
