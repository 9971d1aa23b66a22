"""What is in `__main__`, as bytes: so that interpreters of other sandboxes can begin with it.

Values are pickled. What pickle knows by its name alone, and that name is one of `__main__`, goes by value: functions with
what they close over, classes, enumerations. A copy of the interpreter writes them, so the interpreter itself goes on at once.
They are read in a sandbox and nowhere else, because reading them runs code.
"""

import pickle
import sys
from _signal import ITIMER_REAL, SIG_DFL, SIG_IGN, SIGALRM, SIGINT, setitimer
from _signal import signal as set_signal
from _socket import AF_UNIX, SOCK_STREAM, socket
from json import dumps
from posix import _exit, close, fork, pipe, setsid
from types import ModuleType

HELD = 28
PROTOCOL = 5
# First in what is stored. Code is in it as the byte code of one version of Python.
HEADER = b"variables of Python %d.%d, form 1\n" % sys.version_info[:2]
LARGEST = 2 << 30
# Seconds after which a copy that still writes is ended.
LONGEST = 120
MOST_NOTES = 16
LONGEST_NOTE = 300
NAME = "sandbox_state"

codec = load("codec")
values = load("values")


class Counter:
    """Takes what is written and keeps how much it was."""

    def __init__(self):
        self.size = 0

    def write(self, data):
        self.size += len(data)
        if self.size > LARGEST:
            raise OverflowError("over %d bytes" % LARGEST)


class Sender:
    """Writes to a socket, whole."""

    def __init__(self, peer):
        self.peer = peer

    def write(self, data):
        self.peer.sendall(data)


def store(driver, fields):
    """Answers a request to store. A copy of this process tells the rest on its channel."""
    channel = driver.files.pop(0)
    driver.streams.flush()
    problem, middle = "", None
    parted, parting = pipe()
    try:
        middle = fork()
    except BaseException as error:
        problem = "it cannot be copied (%s: %s)" % (type(error).__name__, error)
        close(parted)
    if middle == 0:
        try:
            load("holder")["in_between"](parting)
            close(parted)
            write(driver, channel)
        finally:
            _exit(0)
    close(parting)
    close(channel)
    answer(driver, fields, problem)
    if middle:
        load("holder")["forget"](middle, parted)


def answer(driver, fields, problem):
    text = codec["text"]
    driver.send(codec["frame"](HELD, codec["put"](fields[0]), text(problem), codec["several"](())))


def write(driver, channel):
    """The life of the copy: first how much it is and what is missing, as JSON behind its length, then the bytes."""
    setsid()
    set_signal(SIGINT, SIG_IGN)
    set_signal(SIGALRM, SIG_DFL)
    setitimer(ITIMER_REAL, LONGEST)
    load("holder")["let_go"](driver)
    peer = socket(AF_UNIX, SOCK_STREAM, 0, channel)
    namespace, notes = storable(driver.cells.main)
    counter = Counter()
    dump(namespace, driver.cells.main, counter)
    told = dumps({"size": counter.size, "count": len(namespace), "left_out": cut(notes)}).encode()
    peer.sendall(len(told).to_bytes(4, "little") + told)
    dump(namespace, driver.cells.main, Sender(peer))


def cut(notes):
    if len(notes) > MOST_NOTES:
        more = len(notes) - MOST_NOTES + 1
        notes = notes[: MOST_NOTES - 1] + ["%d more variables" % more]
    return notes


def storable(main):
    """The variables that can be stored, and what to say of the others."""
    namespace = {
        name: value
        for name, value in main.__dict__.items()
        if type(name) is str and not (name.startswith("__") and name.endswith("__"))
    }
    if problem_of(namespace, main) is None:
        return namespace, []
    notes = []
    for name, value in list(namespace.items()):
        problem = problem_of({name: value}, main)
        if problem is not None:
            del namespace[name]
            notes.append(("variable %s: %s" % (name, problem))[:LONGEST_NOTE])
    problem = problem_of(namespace, main)
    if problem is not None:
        # Each alone would do, and all together do not.
        return {}, [("all variables: %s" % problem)[:LONGEST_NOTE]]
    return namespace, notes


def problem_of(namespace, main):
    try:
        dump(namespace, main, Counter())
    except BaseException as error:
        return "%s: %s" % (type(error).__name__, error)
    return None


def dump(namespace, main, file):
    # Where pickle looks for what it names.
    sys.modules[values["__name__"]] = module = ModuleType(values["__name__"])
    module.__dict__.update(values)
    file.write(HEADER)
    values["Pickler"](file, PROTOCOL, main).dump(namespace)


def restore(driver, fields):
    """Answers a request to begin with what comes on the channel."""
    channel = driver.files.pop(0)
    driver.begin(codec["as_number"](fields[0]))
    driver.look_for_packages()
    _, error = driver.user(take, channel, driver.cells.main)
    driver.settle_interrupts()
    close(channel)
    problem = "" if error is None else "%s: %s" % (type(error).__name__, error)
    answer(driver, fields, problem[: 4 * LONGEST_NOTE])


def take(channel, main):
    with open(channel, "rb", closefd=False) as file:
        header = file.readline(len(HEADER) + 16)
        if header != HEADER:
            raise ValueError("they are %s" % str(header, "utf-8", "replace").strip())
        namespace = values["Unpickler"](file, main).load()
        main.__dict__.update(namespace)
