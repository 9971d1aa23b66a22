"""Comes before every program: loads its parts by name, each when it is first needed.

`SOURCES`, the parts as text or as byte code, stands before this file in the program.
"""

import marshal
import sys
from _signal import SIG_DFL, SIG_IGN, SIG_SETMASK, SIGINT, SIGPIPE, SIGXFSZ
from _signal import pthread_sigmask
from _signal import signal as set_signal

# The first two as in every interpreter; an interrupt must not end a worker before its driver runs.
IGNORED = (SIGPIPE, SIGXFSZ, SIGINT)

# Every part runs with its own copy of the builtins, so that user code which replaces `len` or `print` does not affect
# it. It is also how a frame of a part is recognised.
BUILTINS = dict(vars(sys.modules["builtins"]))
PARTS = {}
# Warnings that name the caller skip the frames of files with such names, as those of `import` itself: below user code
# there is nothing that it should see.
FILE_NAME = "<sandbox importlib._bootstrap %s>"


def load(name):
    """Returns the namespace of a part, compiled when it is first needed."""
    part = PARTS.get(name)
    if part is None:
        part = {"__name__": "<sandbox %s>" % name, "__builtins__": BUILTINS, "load": load}
        exec(code_of(name), part)
        PARTS[name] = part
    return part


def code_of(name):
    source = SOURCES[name]
    if type(source) is bytes:
        return marshal.loads(source)
    return compile(source, FILE_NAME % name, "exec", dont_inherit=True)


def reset_signals(ignored=IGNORED, numbers=range(1, 65)):
    """Sets the dispositions of a fresh interpreter, whatever the parent process left."""
    pthread_sigmask(SIG_SETMASK, ())
    for number in numbers:
        try:
            set_signal(number, SIG_IGN if number in ignored else SIG_DFL)
        except (OSError, ValueError):
            pass  # SIGKILL, SIGSTOP, and those that the C library keeps for itself
