"""The driver: takes requests from the control stream and runs code. It does nothing else.

It shares a process with code that may break anything. So it keeps its own references to what it
needs, runs with its own builtins, and undoes before each run what the last one did to the
interpreter's settings. Hostile code can still destroy the driver; then the worker is dead or
useless, and the host finds that out by itself.
"""

import builtins
import sys
from _signal import SIG_DFL, SIGINT, SIGURG
from _signal import pthread_kill as signal_thread
from _signal import signal as set_signal
from _thread import _count as thread_count
from _thread import allocate_lock, get_ident
from os import environ
from posix import P_ALL, WEXITED, WNOHANG, WNOWAIT, _exit, getpid, kill, register_at_fork, waitid, write
from time import sleep

from _socket import AF_UNIX, CMSG_SPACE, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, SO_RCVTIMEO, SOCK_STREAM, SOL_SOCKET, socket

codec = load("codec")
cell = load("cell")
streams = load("streams")
double_fork = load("double_fork")
run_settings = load("run_settings")
ARRIVALS = load("installed")["Arrivals"]
BUILTINS = __builtins__

PROTOCOL = 1
RUN, GET_VARIABLE, SET_VARIABLES, INTERRUPT, TOOL_RESULT, CHECKPOINT, EXPORT_VARIABLES, IMPORT_VARIABLES = range(1, 9)
# What a host may still send to a run that has ended.
LATE = (INTERRUPT, TOOL_RESULT)
READY, REFUSED, DISPLAY, CLEAR_OUTPUT, ERROR, EXIT, DONE, VALUE, FAILED = 16, 17, 18, 19, 20, 21, 22, 23, 24
MARKED = 29
# In the place of a mark: each later run starts with this mark.
MARKS_STARTS, START = -1, 0
INVALID = 2
RESULT = 0
SMALL_CHUNK = 4096
CONTROL_CHUNK = 1 << 20
FILES_SPACE = CMSG_SPACE(4 * 8)
LEAST_RECURSION = 200
NAG_SECONDS = 0.002


def timeval(seconds):
    return b"".join(part.to_bytes(8, sys.byteorder) for part in (0, int(seconds * 1e6)))


# The signal that ends a worker whose control stream is lost. Nothing else uses it.
LOST = 64
# A worker without a request for that long is one that was made ahead.
MADE_AHEAD = timeval(0.002)
FOR_EVER = timeval(0)
MAIN_THREAD = get_ident()

STREAMS = streams["Streams"]()
ENDING, take_ending = double_fork["ENDING"], double_fork["take"]
settrace, setprofile = sys.settrace, sys.setprofile
audit = sys.audit
getrecursionlimit, setrecursionlimit = sys.getrecursionlimit, sys.setrecursionlimit
text, number, frame, put = codec["text"], codec["number"], codec["frame"], codec["put"]
split, as_number, as_text, cut = codec["split"], codec["as_number"], codec["as_text"], codec["cut"]

# Parts of the frame of a plain result, which most results are.
PLAIN_START = text("text/plain") + number(0)
RESULT_FIELD = number(RESULT)
NO_METADATA = text("{}") + text("")


def lost():
    """Ends because the connection to the host is lost. An exit status would not show that: each may be one that code chose."""
    try:
        set_signal(LOST, SIG_DFL)
    except Exception:
        pass  # only the main thread may
    kill(getpid(), LOST)
    _exit(1)


class Run:
    """One `Run` request, decoded."""

    def __init__(self, fields):
        id, script, code, filename, cwd, env, argv, has_stdin = fields
        self.id = as_number(id)
        self.script = bool(as_number(script))
        self.code = as_text(code)
        self.filename = as_text(filename)
        self.cwd = as_text(cwd)
        self.env = codec["as_pairs"](env) if env else ()
        self.argv = codec["as_texts"](argv) if argv else None
        self.has_stdin = bool(as_number(has_stdin))


class Driver:
    """The driver is made in the zygote, so that a worker has only to `adopt` its request."""

    def __init__(self):
        self.socket = None
        self.control = None
        self.work_dir = None
        self.arrivals = ARRIVALS(None, None)  # known once this is a worker
        self.pid = None
        self.buffer = b""
        self.files = []
        self.count = 0
        self.current = None
        self.shown = 0
        self.marks = 0
        self.marks_starts = False  # once processes or threads of code may write between two runs
        self.lock = allocate_lock()
        self.running = False
        self.active = False
        self.masked = 0
        self.pending = False
        self.nagging = False
        self.signalled = False
        self.interrupted = False
        self.cancel = None
        self.calls = None  # of tools, once there are any
        self.streams = STREAMS
        self.tidied = False
        self.cells = cell["Cells"](self)
        self.recursion_limit = getrecursionlimit()
        self.modules = 0  # how many there are before any code runs

    def adopt(self, request):
        """Starts as the worker of a request."""
        self.request = request
        self.socket = socket(AF_UNIX, SOCK_STREAM, 0, request.control)
        self.control = request.control
        self.work_dir = request.work_dir
        self.pid = getpid()
        self.streams.adopt()
        self.streams.deliver_by(self.deliver)
        self.cells.adopt()
        self.modules = len(sys.modules)

    def retire(self):
        """Ends a driver that only rehearsed."""
        self.socket.close()
        self.streams.abandon()
        self.cells.forget_all()

    # The control stream.

    def send(self, data):
        """Writes whole frames. A copy of this process never writes for it."""
        if getpid() != self.pid:
            return
        self.masked += 1
        try:
            sent = write(self.control, data)
            while sent < len(data):
                sent += write(self.control, memoryview(data)[sent:])
        except OSError:
            lost()
        finally:
            self.masked -= 1

    def show(self, data):
        """Writes frames of the current run from any thread. Returns false without a run."""
        main = get_ident() == MAIN_THREAD
        self.masked += main
        try:
            with self.lock:
                if self.current is None:
                    return False
                if getpid() == self.pid:
                    self.send(self.mark() + data)
        finally:
            self.masked -= main
        self.deliver()
        return True

    def mark(self):
        """Marks that what was written so far comes before what is sent now. Returns the frame with the marks."""
        self.marks += 1
        marks = self.streams.mark(self.current, self.marks)
        return frame(MARKED, number(self.current), *[number(mark) for mark in marks])

    def next_request(self):
        while True:
            request = self.buffered_request()
            if request is not None:
                return request
            if ENDING and not self.buffer:
                self.take_ending()
            else:
                self.receive()

    def take_ending(self):
        """Reaps processes that a copy of this one has left behind, until there is something else to do."""
        while ENDING and not self.buffer:
            again = take_ending()
            if ENDING:
                self.socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, timeval(again))
                self.receive()
        self.socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, FOR_EVER)

    def buffered_request(self):
        buffer = self.buffer
        if len(buffer) < 4:
            return None
        end = 4 + int.from_bytes(buffer[:4], "little")
        if len(buffer) < end:
            return None
        if len(buffer) == end:
            self.buffer = b""
        else:
            self.buffer = buffer[end:]
        return buffer[4], split(bytes(buffer[5:end]))

    def buffered_answer(self):
        """Returns the next answer; a request stays where it is."""
        return self.buffered_request() if len(self.buffer) > 4 and self.buffer[4] in LATE else None

    def receive(self, flags=0):
        # Most requests are small, and room for a large one costs more than to take one.
        chunk = CONTROL_CHUNK if self.buffer else SMALL_CHUNK
        try:
            data, ancillary, _, _ = self.socket.recvmsg(chunk, FILES_SPACE, MSG_CMSG_CLOEXEC | flags)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if getpid() != self.pid:
            _exit(0)
        if not data:
            lost()
        if not self.buffer:
            self.buffer = data
        elif type(self.buffer) is bytearray:
            self.buffer += data
        else:
            self.buffer = bytearray(self.buffer) + data
        if ancillary:
            self.files += codec["received_files"](ancillary)

    # Interrupts.

    def on_interrupt(self, signum, frame):
        """Raises in user code and nowhere else."""
        if getpid() != self.pid:
            raise KeyboardInterrupt
        if not self.running:
            self.signalled = True
            return
        if not self.active or self.masked or frame is None or frame.f_globals.get("__builtins__") is BUILTINS:
            self.pending = True
            self.ask_again()
            return
        self.pending = False
        self.interrupted = True
        if self.cancel is None or not self.cancel():
            raise KeyboardInterrupt

    def ask_again(self):
        """Repeats an interrupt until it meets user code."""
        if not self.nagging:
            self.nagging = True
            try:
                self.streams.burst.start_thread(self.nag)
            except Exception:
                self.nagging = False

    def nag(self):
        while True:
            while self.pending and self.running:
                sleep(NAG_SECONDS)
                if self.pending and self.running:
                    # A real signal, because only that wakes a call that blocks.
                    signal_thread(MAIN_THREAD, SIGINT)
            self.nagging = False
            # An interrupt that came just now found this thread still there, and started no other.
            if not (self.pending and self.running) or self.nagging:
                return
            self.nagging = True

    def settle_interrupts(self):
        """Ends the time in which interrupts are meant for this request."""
        self.running = False
        while self.nagging:
            sleep(NAG_SECONDS / 10)

    def deliver(self):
        """Raises an interrupt that came while it had to wait."""
        if self.pending and self.active and not self.masked and get_ident() == MAIN_THREAD:
            self.pending = False
            self.interrupted = True
            raise KeyboardInterrupt

    def user(self, function, *arguments):
        """Calls what may run user code; returns its value and what it raised."""
        try:
            try:
                self.active = True
                self.deliver()
                return function(*arguments), None
            finally:
                self.active = False
                self.take_back()
        except BaseException as error:
            return None, error

    def take_back(self):
        """Undoes settings that would hit the driver's own code."""
        try:
            if getrecursionlimit() < LEAST_RECURSION:
                setrecursionlimit(self.recursion_limit)
            settrace(None)
            setprofile(None)
        except Exception:
            pass  # an audit hook of user code forbids it

    # Requests.

    def serve(self, self_check):
        self.send(
            frame(
                READY,
                number(PROTOCOL),
                number(self.pid),
                text("%d.%d.%d" % sys.version_info[:3]),
                text(self_check),
            )
        )
        self.socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, MADE_AHEAD)
        self.receive()
        self.socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, FOR_EVER)
        if not self.buffer:
            load("warmup")["rehearse_first_run"](self)
        while True:
            self.step()

    def step(self):
        """Takes one request and answers it."""
        kind, fields = self.next_request()
        if kind == RUN:
            self.run(Run(fields))
            self.tidy()
            return
        if kind not in LATE:
            self.tidied = False
        if kind in (GET_VARIABLE, SET_VARIABLES):
            self.variable(kind, fields)
        elif kind == CHECKPOINT:
            load("checkpoint")["hold"](self, fields)
        elif kind == EXPORT_VARIABLES:
            load("variable_export")["store"](self, fields)
        elif kind == IMPORT_VARIABLES:
            load("variable_export")["restore"](self, fields)
        elif kind not in LATE:
            _exit(2)

    def run(self, run):
        self.count += 1
        self.shown = 0
        # No code has run here, so that everything is as it was set up.
        fresh = self.tidied and self.count == 1
        self.begin(run.id, fresh)
        if self.marks_starts:
            self.mark_start(run)
        stdin = self.files.pop(0) if run.has_stdin else None
        self.current = run.id
        undo = []
        try:
            self.prepare(run, stdin, undo, fresh)
        except streams["Lost"] as error:
            self.send(frame(REFUSED, text("streams"), text(str(error))))
            _exit(1)
        except Exception as error:
            outcome = frame(FAILED, number(run.id), number(INVALID), text(str(error)))
        else:
            outcome = self.cells.run(run)
        self.leave_copy(outcome)
        self.settle_interrupts()
        for step in reversed(undo):
            try:
                step()
            except Exception:
                pass  # what user code made impossible to undo stays
        self.streams.flush()
        problem = refused_by_hook()
        with self.lock:
            self.current = None
            if problem is not None:
                self.send(outcome + frame(REFUSED, text("audit hook"), text(problem)))
                _exit(1)
            self.send(outcome + self.note_writers(run) + self.done(run))
        if self.calls is not None:
            self.calls.end()

    def tidy(self):
        """Puts the streams in order for the next run. Threads of user code may undo that at any time, so with threads each run
        does it itself.
        """
        try:
            if not self.buffer and thread_count() == 0:
                self.streams.restore()
                self.tidied = True
        except Exception:
            pass  # the next run reports that

    def begin(self, request, fresh=False):
        """Starts the time in which interrupts are meant for this request."""
        if not fresh:
            set_signal(SIGINT, self.on_interrupt)
        self.pending = self.interrupted = False
        self.running = True
        if self.signalled:
            self.signalled = False
            if self.was_meant(request):
                self.pending = True

    def was_meant(self, request):
        """Returns true when a signal that came before this request began was meant for it, and not for the one before.

        The host names the request on the control stream before it sends the signal, unless the request has called a
        tool. Before that, it sends nothing else there, but answers for an earlier request may still come.
        """
        self.receive(MSG_DONTWAIT)
        meant = False
        while True:
            told = self.buffered_request()
            if told is None:
                return meant
            kind, fields = told
            if kind not in LATE:
                _exit(2)
            meant = meant or kind == INTERRUPT and codec["as_number"](fields[0]) == request

    def mark_start(self, run):
        """Marks that what was written so far belongs to no run."""
        self.masked += 1
        try:
            self.streams.mark(run.id, START)
        finally:
            self.masked -= 1

    def note_writers(self, run):
        """Returns the frame that announces marks of starts, when something is left that may write before the next run."""
        self.marks_starts = self.marks_starts or thread_count() > 0 or has_children()
        return frame(MARKED, number(run.id), number(MARKS_STARTS), number(MARKS_STARTS)) if self.marks_starts else b""

    def done(self, run):
        return frame(
            DONE,
            number(run.id),
            number(self.count),
            number(int(self.interrupted)),
            number(thread_count()),
        )

    def prepare(self, run, stdin, undo, fresh):
        """Applies the settings of this run. `undo` gets what restores the former ones."""
        tidied, self.tidied = self.tidied, False
        if not fresh:
            if tidied and thread_count() == 0 and self.streams.are_in_place():
                self.streams.reconnect()
            else:
                self.streams.restore()
                _, error = self.user(self.streams.put_in_place)
                self.pending = self.pending or type(error) is KeyboardInterrupt
        self.arrivals.look()
        if run.script:
            undo.append(self.streams.lend())
        if stdin is not None:
            undo.append(self.streams.give_stdin(stdin))
        argv = run.argv or [run.filename or "-"] if run.script or run.argv else None
        run_settings["apply"](undo, argv, run.cwd, run.env, self.work_dir)

    def leave_copy(self, outcome):
        """Ends a copy of this process: code that forked and did not exit ends here, as it would at the end of a program."""
        if getpid() == self.pid:
            return
        self.nagging = False
        self.streams.burst.forget()
        status = 0
        if outcome[4:5] == bytes((EXIT,)):
            status = codec["as_number"](codec["split"](outcome[5:])[1]) & 0xFF
        elif outcome[4:5] == bytes((ERROR,)):
            status = 1
            self.streams.note(str(codec["split"](outcome[5:])[3], "utf-8").rstrip("\n"))
        self.streams.flush()
        _exit(status)

    def variable(self, kind, fields):
        self.begin(codec["as_number"](fields[0]))
        variables = load("variables")
        action = variables["get" if kind == GET_VARIABLE else "put"]
        value, error = self.user(action, self.cells.main, codec["as_text"](fields[1]))
        self.settle_interrupts()
        if error is not None:
            value = variables["failure"](error)
        failure, content = value
        if failure is None:
            self.send(frame(VALUE, fields_id(fields), codec["put"](content)))
        else:
            self.send(frame(FAILED, fields_id(fields), number(failure), text(content)))

    # Display.

    def display(self, kind, bundle, metadata="{}", display_id=""):
        """Returns a display frame; `bundle` holds (mime, encoding, data as bytes)."""
        items = [text(mime) + number(how) + codec["put"](data) for mime, how, data in bundle]
        return frame(
            DISPLAY,
            number(self.current),
            number(kind),
            codec["several"](items),
            text(metadata),
            text(display_id),
        )

    def result(self, value):
        """Returns the frames for the value of a cell; may run user code."""
        if type(value) in cell["PLAIN"]:
            plain = cut(repr(value)).encode("utf-8", "backslashreplace")
            item = put(PLAIN_START + put(plain))
            return frame(DISPLAY, number(self.current), RESULT_FIELD, item, NO_METADATA)
        return load("rich")["result"](self, value)


def has_children():
    """Returns true when a process that this one has started runs, or was not waited for."""
    try:
        waitid(P_ALL, 0, WEXITED | WNOHANG | WNOWAIT)
    except ChildProcessError:
        return False
    return True


def refused_by_hook():
    """Returns why no code can run here any more, if that is so: nothing removes an audit hook that raises."""
    try:
        audit("compile", "", "<check>")
        audit("exec", refused_by_hook.__code__)
    except BaseException as error:
        return "an audit hook that code has added refuses to run code (%s)" % type(error).__name__
    return None


def fields_id(fields):
    return codec["put"](fields[0])


DRIVER = Driver()
load("builtins_api")["offer"](DRIVER)


def nudged(signum, frame):
    """Does nothing, but a call that blocked has handled other signals then."""


def in_copy():
    DRIVER.streams.burst.forget()
    DRIVER.socket.close()


def serve(request):
    """Runs a worker after it has entered its cell."""
    DRIVER.adopt(request)
    DRIVER.arrivals = ARRIVALS(environ.get("HOME", "/home/sandbox"), DRIVER.streams.note)
    sys.meta_path.append(DRIVER.arrivals)
    set_signal(SIGINT, DRIVER.on_interrupt)
    set_signal(SIGURG, nudged)
    load("hooks")["attach"](DRIVER)
    register_at_fork(before=DRIVER.streams.flush, after_in_child=in_copy)
    load("startup")["show"](environ)
    sys.argv = [""]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.executable]
    DRIVER.tidy()
    DRIVER.serve(request.self_check)
