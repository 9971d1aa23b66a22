"""Actions after user code has imported certain modules."""

import sys
from os import environ

STATE = {"driver": None}
SOURCES = {}
INLINE = "sandbox_inline"
# What warnings name when their caller does not exist.
NOWHERE = ("<sys>", 0) if sys.hexversion >= 0x030C0000 else ("sys", 1)


class Finder:
    """Calls back after the first import of some modules; finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name == INLINE:
            return inline_spec()
        action = OF_ALL.get(name) or (STATE["driver"] and OF_WORKERS.get(name))
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
        part = load("matplotlib_inline")
        for name in ("FigureCanvas", "FigureManager", "new_figure_manager"):
            setattr(module, name, part[name])
        module.new_figure_manager_given_figure = part["new_figure_manager_given_figure"]
        module.show = show_now


def inline_spec():
    from importlib.machinery import ModuleSpec

    return ModuleSpec(INLINE, InlineLoader())


def show_now(*arguments, **options):
    """Replaces `pyplot.show()`: open figures are shown at once."""
    driver = STATE["driver"]
    if driver is not None:
        load("rich")["show_figures"](driver)


def on_linecache(module):
    fill_linecache()


def on_matplotlib(module):
    # A backend that the user chose, by variable or by call, stays.
    if "MPLBACKEND" not in environ:
        module.rcParams["backend"] = "module://" + INLINE
        # Until code says `ioff()`, figures are shown without being asked for.
        module.rcParams["interactive"] = True


def on_warnings(module):
    """Has warnings name no caller below user code, as where there is none."""
    show = module._showwarnmsg

    def showwarnmsg(message):
        if (message.filename, message.lineno) in places_below():
            message.filename, message.lineno = NOWHERE
        show(message)

    module._showwarnmsg = showwarnmsg


def places_below():
    """Returns the lines at which the program stands that this is part of. A thread of user code is not called from there."""
    bottom = bottom_frame()
    frame = sys._getframe()
    while bottom.f_code.co_name == "<module>" and frame is not None:
        if frame.f_globals is bottom.f_globals:
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def bottom_frame():
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def forget_warnings(main):
    """Has warnings that were shown in one cell shown in the next one as well."""
    for names in (main.__dict__, sys.__dict__, bottom_frame().f_globals):
        names.pop("__warningregistry__", None)


def on_asyncio(module):
    load("top_level_await")["offer_loop"](STATE["driver"])


def in_shell(name):
    """Returns the action for a module whose functions show something in a running IPython, or in a browser."""

    def action(module):
        load("shell")[name](STATE["driver"], module)

    return action


# Actions that need the driver. For modules that the zygote has imported, they run when there is one.
OF_WORKERS = {
    "asyncio": on_asyncio,
    "IPython.core.display_functions": in_shell("show_displays"),
    "IPython.core.displaypub": in_shell("show_published"),
    "IPython.core.getipython": in_shell("offer_shell"),
    "plotly.io._renderers": in_shell("show_plotly"),
}
OF_ALL = {
    "linecache": on_linecache,
    "matplotlib": on_matplotlib,
    "pandas.core.config_init": in_shell("widen_tables"),
    "warnings": on_warnings,
}


def install(sys_module):
    sys_module.meta_path.insert(0, Finder())
    if "warnings" in sys_module.modules:
        on_warnings(sys_module.modules["warnings"])


def attach(driver):
    STATE["driver"] = driver
    for name in ("_exit", "abort"):
        driver.streams.burst.end_before(sys.modules["os"], name)
    if "matplotlib" in sys.modules and "MPLBACKEND" in environ:
        # Imported by the zygote, which did not know this worker's environment.
        sys.modules["matplotlib"].rcParams["backend"] = environ["MPLBACKEND"]
        sys.modules["matplotlib"].rcParams["interactive"] = False
    for name, action in OF_WORKERS.items():
        if name in sys.modules:
            action(sys.modules[name])


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
    """Makes a line cache entry; without a time it is never checked against a file."""
    lines = [line + "\n" for line in source.split("\n")]
    return len(source), None, lines, filename
