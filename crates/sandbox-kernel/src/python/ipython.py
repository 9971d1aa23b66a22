"""Changes to IPython in a sandbox."""

import os
import select
import sys
from _thread import get_ident
from signal import SIGINT
from signal import signal as set_signal
from time import sleep

from IPython.core.autocall import IPyAutocall

flush_c = load("library")["flush"]
MAIN_THREAD = load("driver")["MAIN_THREAD"]


STARTS = frozenset(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"))


class Published:
    """Standard streams of a kernel that publishes their text."""

    def __init__(self):
        self.own, self.pid = (sys.stdout, sys.stderr), os.getpid()
        sys.addaudithook(self.before)

    def before(self, event, arguments):
        """Flushes the streams before a process starts, so that its output comes after earlier text."""
        if event in STARTS and os.getpid() == self.pid:
            for stream in self.own:
                try:
                    stream.flush()
                except Exception:
                    pass  # closed by user code

    def restore(self):
        pass

    def put_in_place(self):
        pass

    def flush_replaced(self):
        pass

    def lend(self):
        """Switches to the streams of the kernel for one program. Returns a function that undoes that."""
        former = sys.stdin, sys.stdout, sys.stderr

        def give_back():
            sys.stdin, sys.stdout, sys.stderr = former

        sys.stdout, sys.stderr = self.own
        return give_back

    def flush(self):
        flush_c()
        for stream in (*self.own, sys.stdout, sys.stderr):
            try:
                self.settle(stream)
                stream.flush()
            except Exception:
                pass  # closed by user code

    def settle(self, stream):
        """Waits briefly for the pipe and the thread of the kernel that carry output of descriptors."""
        pipe = getattr(stream, "_fid", None)
        if pipe is None:
            return
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        for _ in range(50):
            if not waiting.poll(0):
                return
            sleep(0.001)

    def note(self, line):
        try:
            self.own[1].write(line + "\n")
        except Exception:
            pass

    def give_stdin(self, file):
        spare, former = os.dup(0), sys.stdin
        os.dup2(file, 0)
        os.close(file)
        given = sys.stdin = sys.__stdin__ = self.standard_input()

        def take_back():
            os.dup2(spare, 0)
            os.close(spare)
            sys.__stdin__ = self.standard_input()
            if sys.stdin is given:
                sys.stdin = former

        return take_back

    def standard_input(self):
        return open(0, "r", encoding="utf-8", errors="surrogateescape", closefd=False)


MARKS = "sandbox_marks"
SHOWN = {"display_data", "update_display_data", "execute_result", "clear_output"}
OUTPUTS = {"stream", *SHOWN}


def request_of(parent):
    """Returns the id of the request in a parent header."""
    return ((parent or {}).get("header") or parent or {}).get("msg_id")


def counted(driver):
    """Counts the published outputs of a run. The queues on the way drop messages silently under load."""
    session = driver.kernel.session
    send = session.send

    def counting_send(stream, message, content=None, parent=None, *arguments, **options):
        kind = message if isinstance(message, str) else message.get("msg_type")
        if kind in OUTPUTS:
            about = parent if isinstance(message, str) else message.get("parent_header")
            if request_of(about) == driver.request:
                next(driver.published)
        return send(stream, message, content, parent, *arguments, **options)

    session.send = counting_send


def marked(driver):
    """Publishes marks before each display, and writes them to the text, which is not published, to keep the order."""
    session = driver.kernel.session
    send = session.send

    def marking_send(stream, message, content=None, parent=None, *arguments, **options):
        kind = message if isinstance(message, str) else message.get("msg_type")
        about = parent if isinstance(message, str) else message.get("parent_header")
        run = driver.current
        if kind not in SHOWN or run is None or request_of(about) != driver.request or os.getpid() != driver.pid:
            return send(stream, message, content, parent, *arguments, **options)
        main = get_ident() == MAIN_THREAD
        driver.masked += main
        try:
            with driver.marking:
                marks = driver.streams.mark(run, next(driver.marks))
                send(stream, MARKS, {"marks": marks}, about)
                sent = send(stream, message, content, parent, *arguments, **options)
        finally:
            driver.masked -= main
        driver.deliver()
        return sent

    session.send = marking_send


# Packages of the kernel, whose exit functions belong to the kernel. That of ZeroMQ registers one with the first large
# message, which would drop unsent messages at the end of a script.
OF_THE_KERNEL = {"IPython", "comm", "debugpy", "ipykernel", "jupyter_client", "tornado", "zmq"}


class Exits:
    """Keeps the exit functions of a script apart from those of the kernel and of cells."""

    def __init__(self):
        import atexit

        self.functions = []
        self.register, self.unregister = atexit.register, atexit.unregister
        self.active = False
        atexit.register = self.add
        atexit.unregister = self.remove

    def add(self, function, *arguments, **options):
        package = str(getattr(function, "__module__", "")).partition(".")[0]
        if not self.active or package in OF_THE_KERNEL:
            return self.register(function, *arguments, **options)
        self.functions.append((function, arguments, options))
        return function

    def remove(self, function):
        self.functions = [entry for entry in self.functions if entry[0] != function]
        self.unregister(function)

    def taken(self):
        while self.functions:
            yield self.functions.pop()


class Exit(IPyAutocall):
    """Implements `exit` and `quit`, which end the code and not the kernel."""

    rewrite = False

    def __call__(self, code=None):
        raise SystemExit(code)


def read_line(prompt=""):
    """Implements `input()`: prompts on standard output, and reads standard input."""
    sys.stdout.write(str(prompt))
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line[:-1] if line.endswith("\n") else line


def read_password(prompt="Password: ", stream=None, *, echo_char=None):
    """Implements `getpass()` as the standard library does without a terminal."""
    from getpass import GetPassWarning
    from warnings import warn

    warn("Can not control echo on the terminal.", GetPassWarning, stacklevel=2)
    sys.stderr.write("Warning: Password input may be echoed.\n")
    return read_line(prompt)


def quieter(former):
    """Suppresses the hint of IPython after every exit."""

    def warn(message, *arguments, **options):
        if not str(message).startswith("To exit:"):
            former(message, *arguments, **options)

    return warn


def is_formatter(frame):
    return frame.f_code.co_filename.endswith("IPython/core/formatters.py")


def first_frame(trace, is_wanted):
    while trace is not None and not is_wanted(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def described(error, trace):
    """Returns the lines of a traceback, from the first frame of a cell, or else of other code run by IPython."""
    first = first_frame(trace, lambda name: name.startswith("<cell-"))
    first = first or first_frame(trace, lambda name: "/IPython/" not in name)
    name = first.tb_frame.f_code.co_filename if first else ""
    text = load("errors")["describe"](error.with_traceback(first), name)[2]
    return text.rstrip("\n").split("\n")


def bounded_displays(driver):
    """Applies the limits of displays in the kernel, so that excess data is not sent."""
    shell = driver.shell
    compute = shell.displayhook.compute_format_data

    def compute_format_data(result):
        data, metadata = compute(result)
        return driver.limited(data), driver.described(metadata)

    shell.displayhook.compute_format_data = compute_format_data
    publish = shell.display_pub.publish

    def limited_publish(data, metadata=None, *arguments, **options):
        kept = driver.limited(data)
        # An empty display with an id is a placeholder for an update.
        if kept or not data and options.get("transient"):
            publish(kept, driver.described(metadata), *arguments, **options)

    shell.display_pub.publish = limited_publish


def plain_tracebacks(driver):
    """Formats tracebacks as Python does, with frames of user code only.

    Those of IPython take too long after an interrupt. A mode of IPython that was selected with `%xmode` applies.
    """
    shell = driver.shell
    usual = shell.InteractiveTB.mode
    shell.compile.get_code_name = lambda raw, code, number: "<cell-%d>" % number
    formers = shell.showtraceback, shell.showsyntaxerror

    def show(former, exc_tuple, arguments, options):
        if exc_tuple is not None and exc_tuple[2] is not None and is_formatter(exc_tuple[2].tb_frame):
            return driver.formatter_failed(exc_tuple[1])
        try:
            kind, error, trace = shell._get_exc_info(exc_tuple)
        except ValueError:
            return former(*arguments, **options)
        if shell.InteractiveTB.mode != usual:
            short, left_out = load("errors")["without_middle"](trace)
            if left_out and former is formers[0]:
                arguments = ((kind, error, short), *arguments[1:])
            return former(*arguments, **options)
        # The reply reports the error; a separate message with invalid Unicode could not be sent.
        shell._last_traceback = described(error, trace)
        driver.traceback_shown(error, shell._last_traceback)

    def showtraceback(exc_tuple=None, *more, **options):
        show(formers[0], exc_tuple, (exc_tuple, *more), options)

    def showsyntaxerror(*arguments, **options):
        show(formers[1], None, arguments, options)

    def kept(error, *arguments, **options):
        """Returns the stored form of an exception, which IPython would format once more, with user code."""
        try:
            lines = described(error, error.__traceback__)
        except Exception:
            lines = []
        value = load("errors")["value_of"](error)
        return {"ename": type(error).__name__, "evalue": value, "traceback": lines}

    shell.showtraceback, shell.showsyntaxerror = showtraceback, showsyntaxerror
    if hasattr(shell, "_format_exception_for_storage"):
        shell._format_exception_for_storage = kept


def shows_pages(shell):
    """Displays the text of `name?` as output, because there is no pager and no terminal."""
    import re

    from IPython.core import page

    def show(text, start=0, screen_lines=0):
        told = text.get("text/plain", "") if isinstance(text, dict) else text
        page.display_page(re.sub("\x1b\\[[0-9;]*m", "", told))

    shell.set_hook("show_in_pager", page.as_hook(show), 0)


def interruptible(driver):
    """Returns a context manager that lets an interrupt end an awaiting cell, even if the cell blocks the event loop.

    The interrupt is raised only in code of the cell: in code of IPython, it would end the kernel.
    """
    import asyncio
    from contextlib import contextmanager

    shell = driver.shell
    runs_code = type(shell).run_code.__code__

    def is_of_cell(frame):
        while frame is not None and frame.f_back is not None:
            if frame.f_back.f_code is runs_code:
                return frame.f_globals is shell.user_global_ns
            frame = frame.f_back
        return False

    @contextmanager
    def cancel_on_sigint(future):
        loop = asyncio.get_running_loop()

        def on_interrupt(signum, frame):
            if asyncio.current_task(loop) is not future:
                driver.pending = False
                driver.interrupted = True
                loop.call_soon_threadsafe(future.cancel)
            elif is_of_cell(frame):
                driver.on_interrupt(signum, frame)
            else:
                driver.postpone()

        former = set_signal(SIGINT, on_interrupt)
        try:
            yield
        finally:
            set_signal(SIGINT, former)

    return cancel_on_sigint


def uninterrupted_callbacks(driver):
    """Defers interrupts during the callbacks of IPython, which would take one for their own error."""
    trigger = driver.shell.events.trigger

    def masked(*arguments, **named):
        main = get_ident() == MAIN_THREAD
        driver.masked += main
        try:
            return trigger(*arguments, **named)
        finally:
            driver.masked -= main

    driver.shell.events.trigger = masked


def nested_run():
    """Makes `asyncio.run` work in a cell, inside the event loop of the kernel, which waits meanwhile."""
    import asyncio
    from asyncio import events

    original = asyncio.run

    def run(main, **options):
        outer = events._get_running_loop()
        if outer is None or get_ident() != MAIN_THREAD:
            return original(main, **options)
        events._set_running_loop(None)
        try:
            return original(main, **options)
        finally:
            events._set_running_loop(outer)
            asyncio.set_event_loop(outer)

    run.__doc__ = original.__doc__
    asyncio.run = asyncio.runners.run = run


# The data of a chart, and of a table.
CHART = "application/vnd.code-sandboxes.chart+json"
TABLE = "application/vnd.code-sandboxes.data+json"


def describes_data(shell):
    """Adds the data of figures of matplotlib to their images, and that of tables of pandas to their text."""
    bundles = shell.display_formatter.mimebundle_formatter
    bundles.for_type_by_name("matplotlib.figure", "Figure", chart_bundle)
    # Version 3 says the second.
    for module in ("pandas.core.frame", "pandas"):
        bundles.for_type_by_name(module, "DataFrame", table_bundle)


def table_bundle(frame):
    try:
        data = load("tables")["describe"](frame)
    except Exception:
        # A table that is not understood has its text.
        data = None
    return {TABLE: data} if data else {}


def chart_bundle(figure):
    try:
        # Labels of ticks are known only then.
        figure.draw_without_rendering()
        chart = load("charts")["describe"](figure)
    except Exception:
        # A figure that is not understood has its image.
        chart = None
    return {CHART: chart} if chart else {}
