"""Rehearses the life of a worker in the zygote, so that workers find everything loaded and settled.

A first compilation initialises types, a first exception imports modules, and the interpreter
rewrites code and caches in place while it runs for the first times. What happens here once costs
no worker time or memory of its own.
"""

import gc
import sys
from _signal import SIG_IGN, SIGINT
from _signal import signal as set_signal
from posix import getcwd

from _socket import AF_UNIX, SOCK_STREAM, socketpair

# After that many rounds, the interpreter leaves its code unchanged.
ROUNDS = 60
RUN, SET_VARIABLES = 1, 3
RECEIVED = 1 << 20
CELL = """
import json
class Warm(Exception): pass
def fail(): raise Warm("up")
async def wait(): return [f"{x:>3}" for x in range(3)]
try: fail()
except Warm as error: caught = error
json.dumps({"a": [1, 2.5, None, "x"]})
[caught]
"""
CELLS = (CELL, "x = 1\nx + 1", "def fail(): raise ValueError('warm')\nfail()", "1+1")
FIRST_CELLS = ("1\n1 + 1", "1+1")
PARTS = ("codec", "cell", "streams", "driver", "errors", "variables", "rich", "magics", "hooks", "shell")

# What a worker's entry does to its process; each step is only pretended here.
DEEDS = (
    "_arrange_files",
    "_capset",
    "_prctl",
    "_reseed",
    "_seccomp",
    "_self_check",
    "_setns",
    "_syscall",
    "_unshare",
    "_write_if_possible",
    "chdir",
    "close",
    "setresgid",
    "setresuid",
    "setrlimit",
    "setsid",
    "umask",
)


class Request:
    """The part of a worker's request that its entry and its driver use."""

    isolated, subreaper, confined = True, False, True
    uid = gid = cell = ruleset = 0
    filter = bytes(8)
    rlimits = ((4, 0, 0), (7, 1024, 1024))

    def __init__(self, control):
        self.control = control
        self.work_dir = getcwd()

    def environment(self):
        return (("LANG", "C.UTF-8"), ("TERM", "dumb"))


def warm(rounds=ROUNDS):
    """Rehearses. With fewer rounds it takes less time, and workers share less."""
    for name in PARTS:
        load(name)
    rehearse_fork(rounds)
    rehearse_entry(rounds)
    rehearse_runs(rounds)
    gc.collect()
    gc.freeze()


def rehearse_fork(rounds):
    """Runs what these modules do in every new process. Here, with one thread, it changes nothing."""
    after_fork = getattr(sys.modules.get("threading"), "_after_fork", int)
    seed = getattr(sys.modules.get("random"), "seed", int)
    for _ in range(rounds):
        after_fork()
        seed()


def rehearse_entry(rounds):
    worker = load("worker")
    deeds = {name: worker[name] for name in DEEDS}
    worker.update(dict.fromkeys(DEEDS, pretend))
    try:
        for _ in range(rounds):
            worker["_enter"](Request(0), [""])
    finally:
        worker.update(deeds)
        load("library")["forget"]()


def pretend(*arguments):
    return 0


def rehearse_runs(rounds):
    codec = load("codec")
    number, text = codec["number"], codec["text"]
    main, argv = sys.modules["__main__"], sys.argv
    ours, theirs = socketpair(AF_UNIX, SOCK_STREAM)
    driver = load("driver")["Driver"]()
    try:
        driver.adopt(Request(theirs.detach()))
        for count in range(rounds):
            take(driver, ours, count, CELLS[min(count, len(CELLS) - 1)])
        ours.send(codec["frame"](SET_VARIABLES, number(0), text('{"x": [1, 2.5, null, "y"]}')))
        driver.step()
        ours.recv(RECEIVED)
    finally:
        ours.close()
        driver.retire()
        sys.modules["__main__"], sys.argv = main, argv
        set_signal(SIGINT, SIG_IGN)


def take(driver, ours, count, code):
    """Takes one run, sent over the other end of the driver's socket."""
    codec = load("codec")
    number, none = codec["number"], codec["put"](b"")
    request = number(count), number(0), codec["text"](code), none, none, none, none, number(0)
    ours.send(codec["frame"](RUN, *request))
    driver.step()
    ours.recv(RECEIVED)


def rehearse_first_run(driver):
    """Rehearses runs: a worker shares its memory with the zygote, and what a run writes to is copied at the first one.

    A worker that waits does that before its first request. User code and the host see nothing of it.
    """
    try:
        ours, theirs = socketpair(AF_UNIX, SOCK_STREAM)
    except OSError:
        return  # hardly any files may be open
    own = driver.socket, driver.control
    driver.socket, driver.control = theirs, theirs.fileno()
    try:
        for code in FIRST_CELLS:
            take(driver, ours, 0, code)
    except Exception:
        pass  # then the first run does it
    finally:
        driver.socket, driver.control = own
        ours.close()
        theirs.close()
        driver.count = 0
        driver.cells.forget_all()
