"""Exports the variables of `__main__` as bytes, so that interpreters of other sandboxes can start with them.

Values are pickled. What pickle knows only by its name, and that name is one of `__main__`, is pickled by value: functions
with their closures, classes, enumerations. A copy of the interpreter writes them, so the interpreter itself continues at
once. They are read only in a sandbox, because reading them runs code.
"""

import sys
from _io import open as open_file
from _signal import ITIMER_REAL, SIG_DFL, SIG_IGN, SIGALRM, SIGINT, setitimer
from _signal import signal as set_signal
from _socket import AF_UNIX, SOCK_STREAM, socket
from posix import O_WRONLY, _exit, close, open, setpgid
from posix import write as write_bytes
from types import FunctionType, ModuleType

PROTOCOL = 5
# First in an export. Code is in it as the byte code of one version of Python.
HEADER = b"variables of Python %d.%d, form 1\n" % sys.version_info[:2]
MAX_EXPORT_SIZE = 2 << 30
CHUNK_SIZE = 256 << 10
# Seconds after which a copy that still writes is killed.
TIME_LIMIT = 60
MAX_NOTES = 16
MAX_NOTE_LENGTH = 300

codec, double_fork = load("codec"), load("double_fork")


def values(driver):
    """Returns the part that knows pickle. It imports modules of Python, whatever files of that name are in the sandbox."""
    path = sys.path[:]
    sys.path[:] = [place for place in path if place not in ("", driver.work_dir, *driver.arrivals.changed)]
    try:
        return load("pickle_by_value")
    finally:
        sys.path[:] = path


class Counter:
    """Takes what is written, up to the maximum size."""

    def __init__(self):
        self.size = 0

    def write(self, data):
        self.size += len(data)
        if self.size > MAX_EXPORT_SIZE:
            raise OverflowError("over %d bytes" % MAX_EXPORT_SIZE)


class Sender:
    """Writes to a socket in chunks, each after its length. An empty one is the end."""

    def __init__(self, peer):
        self.peer = peer

    def write(self, data):
        view = memoryview(data).cast("B")
        for at in range(0, len(view), CHUNK_SIZE):
            self.piece(view[at : at + CHUNK_SIZE])

    def piece(self, data):
        self.peer.sendall(len(data).to_bytes(4, "little"))
        self.peer.sendall(data)


def store(driver, fields):
    """Answers a request to export. A copy of this process writes the rest on its channel."""
    channel = driver.files.pop(0)
    driver.streams.flush()
    left, problem = double_fork["leave_copy"]()
    if left is None and problem is None:
        load("checkpoint")["let_go"](driver)
        write_and_end(driver, channel)
    close(channel)
    driver.send(codec["acknowledged"](fields[0], problem or ""))
    if left:
        double_fork["forget"](*left)


def store_from_copy(driver, channel):
    """Exports from a checkpoint. One more copy writes all of it, or nothing."""
    left, problem = double_fork["leave_copy"]()
    if left is None and problem is None:
        write_and_end(driver, channel)
    close(channel)
    if left:
        double_fork["wait_for"](*left)


def write_and_end(driver, channel):
    """Writes the export and ends."""
    try:
        write(driver, channel)
    finally:
        _exit(0)


def write(driver, channel):
    """Writes the header, with what is there, what is missing, and what is imported; then the chunks."""
    # A group of its own, for signals; and the session of the interpreter, by which it is recognised.
    setpgid(0, 0)
    set_signal(SIGINT, SIG_IGN)
    set_signal(SIGALRM, SIG_DFL)
    setitimer(ITIMER_REAL, TIME_LIMIT)
    go_first()
    sender = Sender(socket(AF_UNIX, SOCK_STREAM, 0, channel))
    # Before this imports any itself.
    imported = codec["several"](codec["text"](name) for name in load("imported")["names"](driver))
    dump = dumper(driver)
    namespace, notes = storable(driver.cells, dump)
    left_out = codec["several"](codec["text"](note) for note in cut(notes))
    sender.piece(codec["number"](len(namespace)) + left_out + imported)
    dump(namespace, sender)
    sender.piece(b"")


def go_first():
    """Lets this process be killed first when memory is short, and not the interpreter."""
    try:
        file = open("/proc/self/oom_score_adj", O_WRONLY)
        write_bytes(file, b"1000")
        close(file)
    except OSError:
        pass  # the file is missing, or may not be written


def cut(notes):
    if len(notes) > MAX_NOTES:
        more = len(notes) - MAX_NOTES + 1
        notes = notes[: MAX_NOTES - 1] + ["%d more variables" % more]
    return notes


def storable(cells, dump):
    """Returns the variables that can be exported, and notes about the others. Names of the last values are not code's own."""
    namespace = {
        name: value
        for name, value in cells.main.__dict__.items()
        if type(name) is str and not (name.startswith("__") and name.endswith("__") or cells.is_last_value(name))
    }
    if problem_of(namespace, dump) is None:
        return namespace, []
    notes = []
    for name, value in list(namespace.items()):
        problem = problem_of({name: value}, dump)
        if problem is not None:
            del namespace[name]
            notes.append(("variable %s: %s" % (name, problem))[:MAX_NOTE_LENGTH])
    problem = problem_of(namespace, dump)
    if problem is not None:
        # Each would do by itself, and all together do not.
        return {}, [("all variables: %s" % problem)[:MAX_NOTE_LENGTH]]
    return namespace, notes


def problem_of(namespace, dump):
    try:
        dump(namespace, Counter())
    except BaseException as error:
        return "%s: %s" % (type(error).__name__, error)
    return None


def dumper(driver):
    """Returns a function that pickles variables to a file."""
    part = values(driver)
    # Where pickle looks for what it names.
    sys.modules[part["__name__"]] = module = ModuleType(part["__name__"])
    module.__dict__.update(part)

    def dump(namespace, file):
        file.write(HEADER)
        pickler = part["Pickler"](file, PROTOCOL, driver.cells.main)
        # Values may be made by functions of `__main__`, which find there what they need.
        for wanted in (True, False):
            pickler.dump({name: value for name, value in namespace.items() if is_definition(value) is wanted})

    return dump


def is_definition(value):
    return isinstance(value, (FunctionType, ModuleType, type))


def restore(driver, fields):
    """Answers a request to import what comes on the channel."""
    channel = driver.files.pop(0)
    driver.begin(codec["as_number"](fields[0]))
    driver.arrivals.look()
    _, error = driver.user(take, channel, values(driver)["Unpickler"], driver.cells.main)
    driver.settle_interrupts()
    close(channel)
    problem = "" if error is None else "%s: %s" % (type(error).__name__, error)
    driver.send(codec["acknowledged"](fields[0], problem[: 4 * MAX_NOTE_LENGTH]))


def take(channel, unpickler, main):
    with open_file(channel, "rb", closefd=False) as file:
        header = file.readline(len(HEADER) + 16)
        if header != HEADER:
            raise ValueError("they are %s" % str(header, "utf-8", "replace").strip())
        reader = unpickler(file, main)
        main.__dict__.update(reader.load())
        main.__dict__.update(reader.load())
