"""State of the C library: standard output of C code, the time zone, the locale."""

import sys
from os import environ
from time import tzset

LINES = 1  # `_IOLBF`
ZONE = ("TZ", "TZDIR")
LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")


def _prepared():
    """Has C code write by lines, as on a terminal, so that its output keeps its place. Returns what flushes the rest of a
    line.
    """
    try:
        from _ctypes import FUNCFLAG_CDECL, CFuncPtr, _SimpleCData, dlopen, dlsym
    except ImportError:
        return int  # an interpreter without it cannot call C either

    class Address(_SimpleCData):
        _type_ = "P"

    class Number(_SimpleCData):
        _type_ = "i"

    class Size(_SimpleCData):
        _type_ = "L"

    class Function(CFuncPtr):
        _flags_ = FUNCFLAG_CDECL
        _restype_ = Number

    try:
        everything = dlopen(None, 0)
        stream = Address.from_address(dlsym(everything, "stdout"))
        lines, flush = Function(dlsym(everything, "setvbuf")), Function(dlsym(everything, "fflush"))
    except (OSError, AttributeError, ValueError):
        return int  # another library, whose streams cannot be found
    lines.argtypes, flush.argtypes = (Address, Address, Number, Size), (Address,)
    lines(stream, None, LINES, 0)

    def flush_c():
        # Only this stream: others may be locked by a thread that waits for input.
        flush(stream)

    return flush_c


flush = _prepared()


def forget():
    """Removes the environment of this process, which is not for the processes that it forks."""
    environ.clear()
    # A zone without a file; otherwise the zone of the host would be taken for that of a cell.
    environ["TZ"] = "UTC0"
    tzset()
    del environ["TZ"]


def follow_all():
    """Applies variables that are others than those with which this process was forked."""
    tzset()
    follow(LOCALE)


def follow(names):
    """Applies variables of these names, which were set or removed."""
    if any(name in ZONE for name in names):
        tzset()
    if any(name in LOCALE for name in names):
        follow_locale()


def follow_locale():
    """Sets the character type, and nothing else, as an interpreter does when it starts."""
    from _locale import LC_CTYPE, setlocale

    wanted = next((environ[name] for name in LOCALE if environ.get(name)), "")
    # An interpreter takes a better locale than the plainest one.
    if wanted not in ("", "C", "POSIX"):
        try:
            setlocale(LC_CTYPE, "")
        except Exception:
            pass  # there is no such locale here, and it stays as it was
