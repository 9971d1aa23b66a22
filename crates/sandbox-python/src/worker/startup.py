"""Variables that an interpreter reads when it starts. A worker gets them afterwards."""

import sys


def show(variables):
    """Does what a start with these variables would have done, where that can be done later."""
    if not variables.get("PYTHONSAFEPATH"):
        sys.path.insert(0, "")
    for name, take in TAKEN.items():
        value = variables.get(name)
        if value:
            try:
                take(value)
            except (ImportError, ValueError):
                pass  # an interpreter would not start with it, or takes no notice


def look_there(value):
    """Adds directories to the import path, before those of Python itself."""
    place = sys.path[:1] == [""]
    sys.path[place:place] = [path for path in map(absolute, value.split(":")) if path not in sys.path[place:]]


def absolute(path):
    from os.path import abspath

    return abspath(path)


def warn(value):
    sys.warnoptions.extend(value.split(","))
    import warnings

    warnings._processoptions(value.split(","))


def skip_user_packages(_):
    site = sys.modules.get("site")
    if site is not None:
        site.ENABLE_USER_SITE = False


def limit_digits(value):
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(int(value))


def trace_memory(value):
    import tracemalloc

    tracemalloc.start(int(value))


def tell_faults(_):
    import faulthandler

    faulthandler.enable()


def keep_byte_code_at(value):
    sys.pycache_prefix = value


TAKEN = {
    "PYTHONPATH": look_there,
    "PYTHONWARNINGS": warn,
    "PYTHONNOUSERSITE": skip_user_packages,
    "PYTHONINTMAXSTRDIGITS": limit_digits,
    "PYTHONTRACEMALLOC": trace_memory,
    "PYTHONFAULTHANDLER": tell_faults,
    "PYTHONPYCACHEPREFIX": keep_byte_code_at,
}
