"""Stands in for IPython where none runs: what libraries show by it is shown as by `display()`."""

import sys
from os import environ

STATE = {"formatter": None, "shell": None}


def show_displays(driver, module):
    """Replaces IPython's own functions, which only print when no shell of it is running."""
    import builtins

    for name in ("display", "update_display", "clear_output"):
        setattr(module, name, getattr(builtins, name))

    def publish_display_data(data, metadata=None, *, transient=None, **options):
        """Shows representations by their MIME types."""
        shell = running_shell()
        publisher = shell_of(driver).display_pub if shell is None else shell.display_pub
        publisher.publish(data, metadata, transient=transient, **options)

    module.publish_display_data = publish_display_data


def show_published(driver, module):
    """Replaces the publisher of a shell that code starts itself, which has no terminal to print to."""
    publisher = module.DisplayPublisher
    publisher.publish, publisher.clear_output = Publisher.publish, Publisher.clear_output
    publisher._driver = driver


def offer_shell(driver, module):
    STATE["running"] = module.get_ipython

    def get_ipython():
        """Returns the shell that code has started, or what stands in for one."""
        return running_shell() or shell_of(driver)

    module.get_ipython = get_ipython


def running_shell():
    known = sys.modules.get("IPython.core.interactiveshell")
    found = STATE.get("running")
    return found() if known is not None and found is not None else None


def shell_of(driver):
    if STATE["shell"] is None:
        STATE["shell"] = Shell(driver)
    return STATE["shell"]


def formatter():
    """Returns IPython's own formatters, once code has used them: it may have registered something there."""
    return STATE["formatter"]


class Publisher:
    """Publishes for a shell."""

    def __init__(self, driver):
        self._driver = driver

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **options):
        """Shows representations by their MIME types."""
        display_id = (transient or {}).get("display_id")
        load("rich")["publish"](self._driver, data, metadata, display_id, update)

    def clear_output(self, wait=False):
        load("rich")["clear"](self._driver, wait)


class Events:
    """Functions that are called around cells."""

    NAMES = ("pre_execute", "pre_run_cell", "post_execute", "post_run_cell")

    def __init__(self, driver):
        self._driver = driver
        self.callbacks = {name: [] for name in self.NAMES}

    def register(self, event, function):
        self.callbacks[event].append(function)
        self._driver.cells.events = self

    def unregister(self, event, function):
        self.callbacks[event].remove(function)

    def trigger(self, event):
        for function in list(self.callbacks[event]):
            function()


class Shell:
    """The part of IPython's shell that libraries use to show something."""

    def __init__(self, driver):
        self._driver = driver
        self.display_pub = Publisher(driver)
        self.events = Events(driver)
        self.config = {}

    @property
    def display_formatter(self):
        if STATE["formatter"] is None:
            from IPython.core.formatters import DisplayFormatter

            STATE["formatter"] = DisplayFormatter()
        return STATE["formatter"]

    @property
    def user_ns(self):
        return self._driver.cells.main.__dict__

    user_global_ns = user_ns

    @property
    def execution_count(self):
        return self._driver.count

    def showtraceback(self, *arguments, **options):
        from traceback import print_exc

        print_exc()

    def run_line_magic(self, name, line, *arguments):
        source = load("magics")["magic"](("%%%s %s" % (name, line)).strip())
        exec(source, self.user_ns)

    def system(self, command):
        load("magics")["shell"](command, False)

    def getoutput(self, command):
        return load("magics")["shell"](command, True)


def widen_tables(driver, module):
    """Gives tables as text the columns that notebooks show, and not those that a terminal has room for."""
    from pandas import _config

    if _config.get_option("display.max_columns") == 0:
        _config.set_option("display.max_columns", 20)


class Shown:
    """Stands in for `IPython.display` where there is no IPython."""

    def __init__(self, driver):
        self._driver = driver

    def display(self, *objects, **options):
        load("rich")["display"](self._driver, objects, **options)

    def display_html(self, *texts, raw=False, **options):
        self.display(*[{"text/html": text} for text in texts], raw=True)


class Format:
    """Stands in for `nbformat`, of which only the version is used."""

    __version__ = "5.10.0"


def show_plotly(driver, module):
    """Shows figures as in a notebook, whatever else is installed: there is no browser to open."""
    for part in (module, sys.modules.get("plotly.io._base_renderers")):
        if part is not None and getattr(part, "ipython_display", None) is None:
            part.ipython_display = Shown(driver)
    if getattr(module, "nbformat", None) is None:
        module.nbformat = Format
    module.renderers.default = environ.get("PLOTLY_RENDERER") or "plotly_mimetype"
