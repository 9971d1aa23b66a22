"""What happens when user code imports certain modules."""

import sys
from os import environ

STATE = {"driver": None}
SOURCES = {}
INLINE = "sandbox_inline"


class Finder:
    """Calls back after the first import of the modules in `ACTIONS`; finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name == INLINE:
            return inline_spec()
        action = ACTIONS.get(name)
        if action is None:
            return None
        spec = find_elsewhere(self, name, path, target)
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return None
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            action(module)

        loader.exec_module = exec_module
        return spec


def find_elsewhere(finder, name, path, target):
    for other in sys.meta_path:
        find = None if other is finder else getattr(other, "find_spec", None)
        spec = find(name, path, target) if find else None
        if spec is not None:
            return spec
    return None


class InlineLoader:
    """Makes the module that is matplotlib's backend."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        part = load("inline")
        for name in ("FigureCanvas", "FigureManager", "new_figure_manager"):
            setattr(module, name, part[name])
        module.new_figure_manager_given_figure = part["new_figure_manager_given_figure"]
        module.show = show_now


def inline_spec():
    from importlib.machinery import ModuleSpec

    return ModuleSpec(INLINE, InlineLoader())


def show_now(*arguments, **options):
    """`pyplot.show()`: what is open is shown at once."""
    driver = STATE["driver"]
    if driver is not None:
        load("rich")["show_figures"](driver)


def on_linecache(module):
    fill_linecache()


def on_matplotlib(module):
    # A backend that the user chose, by variable or by call, stays.
    if "MPLBACKEND" not in environ:
        module.rcParams["backend"] = "module://" + INLINE


def on_ipython_display(module):
    """IPython's own functions only print when no IPython shell is running."""
    import builtins

    for name in ("display", "update_display", "clear_output"):
        function = getattr(builtins, name, None)
        if function is not None:
            setattr(module, name, function)


ACTIONS = {
    "linecache": on_linecache,
    "matplotlib": on_matplotlib,
    "IPython.core.display_functions": on_ipython_display,
}


def install(sys_module):
    sys_module.meta_path.insert(0, Finder())


def attach(driver):
    STATE["driver"] = driver
    if "matplotlib" in sys.modules and "MPLBACKEND" in environ:
        # Imported by the zygote, which did not know this worker's environment.
        sys.modules["matplotlib"].rcParams["backend"] = environ["MPLBACKEND"]
    if "IPython.core.display_functions" in sys.modules:
        on_ipython_display(sys.modules["IPython.core.display_functions"])


def remember_source(filename, source):
    SOURCES[filename] = source
    cache = getattr(sys.modules.get("linecache"), "cache", None)
    if type(cache) is dict:
        cache[filename] = entry(filename, source)


def forget_source(filename):
    SOURCES.pop(filename, None)
    cache = getattr(sys.modules.get("linecache"), "cache", None)
    if type(cache) is dict:
        cache.pop(filename, None)


def fill_linecache():
    cache = getattr(sys.modules.get("linecache"), "cache", None)
    if type(cache) is dict:
        for filename, source in SOURCES.items():
            cache[filename] = entry(filename, source)


def entry(filename, source):
    """A line cache entry; without a time it is never checked against a file."""
    lines = [line + "\n" for line in source.split("\n")]
    return len(source), None, lines, filename
