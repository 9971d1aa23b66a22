"""The Python of an interpreter context of the test server: runs code, and prints lines of JSON about it.

It behaves as that of the toolbox does: text of `print` is passed on at line ends or from 1,024 characters, the value of an
expression is not shown, `sys.exit` ends a run as if it were complete, and an interrupt is told as such.
"""

import contextlib
import io
import json
import os
import signal
import sys
import traceback


def emit(**message):
    json.dump(message, sys.__stdout__)
    sys.__stdout__.write("\n")
    sys.__stdout__.flush()


class Out(io.TextIOBase):
    def __init__(self, kind):
        self.kind = kind
        self.parts = []

    def writable(self):
        return True

    def write(self, text):
        self.parts.append(str(text))
        if "\n" in text or sum(map(len, self.parts)) >= 1024:
            self.flush()
        return len(text)

    def flush(self):
        text = "".join(self.parts)
        self.parts.clear()
        if text:
            emit(type=self.kind, text=text)


def interrupt(*_):
    raise KeyboardInterrupt("Execution interrupted")


def run(space, request):
    out, err = Out("stdout"), Out("stderr")
    end, error = "completed", None
    before = {}
    for name, value in (request.get("envs") or {}).items():
        before[name] = os.environ.get(name)
        os.environ[name] = value
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            exec(compile(request["code"], "<string>", "exec"), space)
    except KeyboardInterrupt:
        end = "interrupted"
    except SystemExit:
        pass
    except Exception as raised:
        text = "".join(traceback.format_exception(raised))
        error = {"name": type(raised).__name__, "value": str(raised), "traceback": text}
    out.flush()
    err.flush()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if error:
        emit(type="error", **error)
    emit(type="control", text=end)


signal.signal(signal.SIGINT, interrupt)
variables = {"__name__": "__main__", "__doc__": None, "__package__": None, "__builtins__": __builtins__}
while True:
    try:
        line = sys.stdin.readline()
        if not line:
            break
        if line.strip():
            run(variables, json.loads(line))
    except KeyboardInterrupt:
        continue
