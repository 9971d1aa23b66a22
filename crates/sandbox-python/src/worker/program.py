"""A zygote of a program: an interpreter that was started as the program and has stopped right before it.

Its last step before a program is to import `sitecustomize`, and this zygote has that name. Workers return from that
import: the program begins in them as in any interpreter, with nothing of ours below it. The zygote has imported what the
program would import first; in a worker where that could have become something else, the program does not begin.
A variable that a module has set is set in the workers.
"""

import sys
from _signal import SIGINT, default_int_handler
from _signal import signal as set_signal
from io import TextIOWrapper
from io import open as open_file
from os import environ, environb, fsdecode, fsencode, stat
from posix import _exit, close, getpid, read, unsetenv, write
from time import tzset

PLACE = "/proc/self/fd/4"
NAME = "sitecustomize"
READY = 16
PROTOCOL = 1
VERSION_FLAG = b"--version\0"
PR_SET_MM = 35
PR_SET_MM_MAP = 14
# Variables that are read without `os.environ`: by the interpreter, its loader, its library, and what runs before this.
UNSEEN = (
    "COVERAGE_",
    "GLIBC_",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "SETUPTOOLS_",
    "TZ",
)
STANDARD = (("<stdin>", "r"), ("<stdout>", "w"), ("<stderr>", "w"))
KEPT = {}


class Watched(dict):
    """The variables of this process, with the names that were looked up."""

    def __init__(self, variables):
        dict.__init__(self, variables)
        self.looked_up = set()
        self.all = False

    def __getitem__(self, key):
        self.looked_up.add(key)
        return dict.__getitem__(self, key)

    def __iter__(self):
        self.all = True
        return dict.__iter__(self)


def prepare(modules, imports):
    """Imports the modules that are there; a `ValueError` explains why no worker could be as after the same imports."""
    import importlib.util
    import threading

    forget_place()
    if places([sys.modules["site"].USER_SITE]) != [None]:
        raise ValueError("there is a directory with the name of the home in a cell")
    variables = environ._data
    watched = Watched(variables)
    environ._data = environb._data = watched
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        for name in modules:
            imports(name)
    finally:
        sys.dont_write_bytecode = writes
        environ._data = environb._data = variables
    if watched.all:
        raise ValueError("a module looks at all variables when it is imported")
    added = {name: value for name, value in dict.items(watched) if name not in variables}
    if {**variables, **added} != dict(dict.items(watched)):
        raise ValueError("a module changes variables when it is imported")
    for name in added:
        unsetenv(name)
    if "numpy" in sys.modules:
        raise ValueError("numpy was imported, and has as many threads as it found processors")
    names = [fsdecode(name) for name in watched.looked_up]
    KEPT["added"] = {fsdecode(name): fsdecode(value) for name, value in added.items()}
    KEPT["variables"] = {name: environ.get(name) for name in ["HOME", "LANG"] + names}
    KEPT["places"] = places(sys.path)
    KEPT["modules"] = set(sys.modules)


def forget_place():
    """Removes the traces of how the interpreter got here."""
    import zipimport

    sys.path.remove(PLACE)
    sys.path_importer_cache.pop(PLACE, None)
    zipimport._zip_directory_cache.pop(PLACE, None)
    for name in ("PYTHONPATH", "LD_BIND_NOW"):
        environ.pop(name, None)
    KEPT[NAME] = sys.modules.pop(NAME)


def places(path):
    """Records what is at a path, so that something else in its place is noticed."""
    found = []
    for name in path:
        try:
            status = stat(name)
        except (OSError, TypeError):
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found


def go_on(request):
    """Lets the program begin, unless the process would not be as a fresh interpreter."""
    try:
        problem = difference()
        if not problem:
            become(request)
    except BaseException as error:
        problem = "%s: %s" % (type(error).__name__, error)
    if problem:
        load("worker")["_refuse"]("program", problem)
    # As without that module, which `difference` has checked. The importing code removes it.
    sys.modules[NAME] = KEPT[NAME]
    raise ImportError("No module named %r" % NAME, name=NAME)


def become(request):
    """Makes this process as a fresh one, and waits until the host knows it."""
    set_signal(SIGINT, default_int_handler)
    own_thread()
    own_number()
    own_time_zone()
    show_as_fresh(request.arguments)
    sys.argv[1:] = request.arguments
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[-1:] = request.arguments
    for number, (name, mode) in enumerate(STANDARD):
        open_standard(number, name, mode)
    codec = load("codec")
    number, text = codec["number"], codec["text"]
    version = "%d.%d.%d" % sys.version_info[:3]
    ready = number(PROTOCOL), number(getpid()), text(version), text(request.self_check)
    write(request.control, codec["frame"](READY, *ready))
    if not read(request.control, 1):
        _exit(0)  # the host is gone
    close(request.control)
    for name in set(sys.modules) - KEPT["modules"]:
        del sys.modules[name]
    environ.update(KEPT["added"])


def difference():
    """Returns what a fresh interpreter would find otherwise here."""
    variables = KEPT["variables"]
    unseen = [name for name in environ if name.startswith(UNSEEN) and name not in variables]
    for name in list(variables) + unseen:
        if environ.get(name) != variables.get(name):
            return "%s is another one" % name
    site = sys.modules["site"]
    if site.ENABLE_USER_SITE and places([site.USER_SITE]) != [None]:
        return "the user has packages"
    if places(sys.path) != KEPT["places"]:
        return "modules are looked for elsewhere"
    if sys.modules["importlib.util"].find_spec(NAME) is not None:
        return "there is a %s" % NAME
    return None


def own_thread():
    """Sets the id of the thread, which interpreters before 3.13 leave as it was before a fork."""
    thread = sys.modules["threading"].main_thread()
    if hasattr(thread, "_set_native_id"):
        thread._set_native_id()


def own_number():
    """Sets the process id that `debugpy` writes before a line of its log."""
    log = sys.modules.get("_pydevd_bundle._debug_adapter.pydevd_schema_log")
    if log is not None:
        log._pid = getpid()
        log._pid_msg = "%s: " % (log._pid,)


def own_time_zone():
    """Sets the time zone, which is that of the host until then."""
    environ["TZ"] = "UTC0"
    tzset()
    del environ["TZ"]
    tzset()


def show_as_fresh(arguments):
    """Has the system show arguments and variables as if this process had been started with them.

    The system reads both from the memory of the process. Where they cannot be moved, nothing happens.
    """
    function, long = load("worker")["_function"], load("worker")["_Long"]
    words = contents("/proc/self/cmdline")[: -len(VERSION_FLAG)] + b"".join(map(ended, arguments))
    text = words + b"".join(ended("%s=%s" % pair) for pair in environ.items())
    place = function("malloc", long)(len(text))
    function("memcpy", long, load("worker")["_Pointer"], long)(place, text, len(text))
    fields = contents("/proc/self/stat").rpartition(b")")[2].split()
    known = [int(fields[number - 3]) for number in (26, 27, 45, 46, 47)]
    numbers = known + [function("sbrk", long)(0), int(fields[28 - 3])]
    numbers += [place, place + len(words), place + len(words), place + len(text)]
    # `struct prctl_mm_map`: these, no auxiliary vector, no other program.
    places = b"".join(number.to_bytes(8, sys.byteorder) for number in numbers) + bytes(12) + b"\xff" * 4
    load("worker")["_seccomp"](PR_SET_MM, PR_SET_MM_MAP, places, len(places), 0)


def ended(word):
    return fsencode(word) + b"\0"


def contents(path):
    with open_file(path, "rb") as file:
        return file.read()


def open_standard(number, name, mode):
    """Opens a standard stream as the interpreter does; the earlier one was for another file."""
    former = getattr(sys, name.strip("<>"))
    buffer = open_file(number, mode + "b", closefd=False)
    getattr(buffer, "raw", buffer).name = name
    lines = number == 2 or buffer.raw.isatty()
    stream = TextIOWrapper(buffer, former.encoding, former.errors, "\n", line_buffering=lines)
    stream.mode = mode
    short = name.strip("<>")
    setattr(sys, short, stream)
    setattr(sys, "__%s__" % short, stream)
