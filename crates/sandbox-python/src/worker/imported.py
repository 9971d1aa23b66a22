"""Names of modules that an interpreter has imported, for interpreters that shall start with them."""

import sys
from types import ModuleType

MAX_MODULES = 256
MAX_NAME_LENGTH = 100


def names(driver):
    """Returns modules of variables first, then the others, none of files in the sandbox. Code may have made the list useless."""
    try:
        known = list(sys.modules)
        new = known[driver.modules :]
        found = dict.fromkeys(of_variables(driver.cells.main))
        # Submodules come with these, or belong to a variable.
        found.update(dict.fromkeys(name for name in new if "." not in name))
        found.update(dict.fromkeys(name for name in new if name.count(".") == 1 and "._" not in name))
        at_first = set(known[: driver.modules])
        places = tuple(place.rstrip("/") + "/" for place in (driver.work_dir, *driver.arrivals.changed) if place)
        wanted = [name for name in found if name not in at_first and is_elsewhere(name, places)]
        return wanted[:MAX_MODULES]
    except Exception:
        return []


def of_variables(main):
    for value in list(main.__dict__.values()):
        name = value.__name__ if type(value) is ModuleType else getattr(value, "__module__", None)
        if type(name) is str and name in sys.modules:
            yield name


def is_elsewhere(name, places):
    if len(name) > MAX_NAME_LENGTH or name == "__main__":
        return False
    module = sys.modules[name.partition(".")[0]]
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return type(origin) is str and not origin.startswith(places)
