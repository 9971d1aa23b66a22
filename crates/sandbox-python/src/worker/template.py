"""Modules that the interpreter of a template had imported, for all interpreters that start like it.

Their names were reported by code in a sandbox, and this process is in none. So a name decides only which of this
interpreter's own modules are imported, never what a module is; and no other effect of an import is undone here:
the host starts another interpreter without them.
"""

import sys
from _signal import ITIMER_REAL, SIG_DFL, SIGALRM, setitimer
from _signal import signal as set_signal
from os import environ, getcwd
from posix import chdir
from posixpath import basename, dirname, realpath

PACKAGES = ("site-packages", "dist-packages")
# Seconds after which this process ends, because an import hangs.
TIME_LIMIT = 20
# As in a cell. A module remembers it, and nothing of the host may be remembered.
HOME = "/home/sandbox"


def take(names, imports):
    """Imports the names that are this interpreter's own modules. `imports` imports one, and raises what is final."""
    set_signal(SIGALRM, SIG_DFL)
    setitimer(ITIMER_REAL, TIME_LIMIT)
    places, path, former = own_places(), sys.path[:], environ.get("HOME")
    environ["HOME"] = HOME
    for name in names:
        if is_own(name.partition(".")[0], places):
            imports(name)
    if former is None:
        del environ["HOME"]
    else:
        environ["HOME"] = former
    sys.path[:] = path
    # Reading the variables of a template needs it in each sandbox.
    load("pickle_by_value")
    setitimer(ITIMER_REAL, 0)
    if getcwd() != "/":
        chdir("/")


def own_places():
    """Returns the directories of the standard library and of what is installed with this interpreter."""
    library = realpath(dirname(sys.modules["os"].__file__))
    roots = [realpath(root) for root in (sys.prefix, sys.base_prefix)]
    places = [library, library + "/lib-dynload"]
    for path in map(realpath, sys.path):
        below = any(path.startswith(root.rstrip("/") + "/") for root in roots)
        if below and (basename(path) in PACKAGES or path.endswith("/lib-dynload")):
            places.append(path)
    return places


def is_own(name, places):
    """Returns true when a top-level module is one of those. It is not imported for that."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    if not spec.has_location or not spec.origin:
        return False  # a package of no file at all, which anything may add to
    home = dirname(realpath(spec.origin))
    if spec.submodule_search_locations is not None:
        home = dirname(home)
    return home in places
