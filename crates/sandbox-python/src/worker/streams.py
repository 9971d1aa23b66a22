"""Standard input, output and error of user code.

Output is with the host before the next statement runs, whether a line is complete or not: code may end in ways
that leave nothing more to be done. A burst would pay system calls for every piece, so during a burst standard output is
collected in blocks, and a thread writes out what is there every few milliseconds. The thread ends with the burst. Before a
process is started, collected output is written first, so that its output comes after it. A program with threads of its own
always writes piece by piece.

Displays are sent another way. So that they keep their place, marks are written before them.
"""

import sys
from _io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from _thread import _count as thread_count
from _thread import allocate_lock, start_new_thread
from posix import close, dup2, fstat, set_blocking, write
from sys import getswitchinterval, setswitchinterval
from time import monotonic

from fcntl import F_DUPFD_CLOEXEC, fcntl

flush_c = load("library")["flush"]

BURST_WRITES = 32
BURST_SECONDS = 0.005
FLUSH_SECONDS = 0.005
QUIET_ROUNDS = 4
STREAMS = {"stdin": "surrogateescape", "stdout": "strict", "stderr": "backslashreplace"}
OUTPUTS = ("stdout", "stderr")
MARK = b"\xfemark\xfe"
# While two threads write blocks, interpreters before 3.12.4 lose lines.
ENDS_BURST = frozenset(
    (
        "subprocess.Popen",
        "os.system",
        "os.posix_spawn",
        "os.fork",
        "os.forkpty",
        "os.exec",
        "os.kill",
        "os.killpg",
        "signal.pthread_kill",
        # Functions of C have streams of their own.
        "ctypes.string_at",
        "ctypes.dlopen",
        "ctypes.dlsym",
        "_thread.start_new_thread",
        "_thread.start_joinable_thread",
    )
)


class Lost(Exception):
    """A standard stream cannot be restored, so output of code would be lost."""


class _Standard(FileIO):
    """Descriptor 1 or 2. Both are pipes in a worker, whatever they are where this is made."""

    def seekable(self):
        return False


class _Output(BufferedWriter):
    """Writes data at once, except during bursts."""

    __slots__ = ("_burst",)

    def write(self, data):
        count = _collect(self, data)
        # An interrupt that met this method had to wait, because raising after the bytes are written
        # would send them twice. Here they are kept, and not written yet.
        self._burst.deliver_interrupt()
        self._burst.wrote()
        if self._burst.wake is None:
            _write_out(self)
        return count


_collect, _write_out = BufferedWriter.write, BufferedWriter.flush
# By this a handler of interrupts knows that bytes may be written. The handler of workers raises in nothing of the driver.
WRITE = _Output.write.__code__


class Steady:
    """Replaces a burst, for a stream that collects nothing."""

    wake = None
    wrote = deliver_interrupt = int  # nothing


class Burst:
    """Switches one text stream between pieces and blocks."""

    def __init__(self):
        self.stream = None
        self.writes = 0
        self.since = 0.0
        self.wake = None
        self.ended = None
        self.watching = False
        self.starting = False
        self.deliver_interrupt = int  # nothing, until a driver takes over

    def wrote(self):
        self.writes += 1
        if self.wake is None and self.writes % BURST_WRITES == 0:
            now = monotonic()
            if now - self.since < BURST_SECONDS and not self.starting and thread_count() == 0:
                self.begin()
            self.since = now

    def begin(self):
        if not self.watching:
            # Most runs never come here: the hook costs every audited call a little.
            self.watching = True
            sys.addaudithook(self.before)
        wake, ended = allocate_lock(), allocate_lock()
        wake.acquire()
        ended.acquire()
        self.wake, self.ended = wake, ended
        interval = getswitchinterval()
        # Otherwise this thread prints thousands of lines before the other one runs.
        setswitchinterval(1e-6)
        try:
            self.start_thread(self.flush_often, self.stream, wake, ended, interval)
        except Exception:
            setswitchinterval(interval)  # no thread to be had; pieces it is
            self.wake = None

    def start_thread(self, function, *arguments):
        """Starts a thread of the driver, which does not end the burst."""
        former, self.starting = self.starting, True
        try:
            start_new_thread(function, arguments)
        finally:
            self.starting = former

    def flush_often(self, stream, wake, ended, interval):
        buffer = None
        try:
            buffer, lines = stream.buffer, stream.line_buffering
            try:
                stream.reconfigure(line_buffering=False, write_through=False)
            finally:
                setswitchinterval(interval)
            quiet = 0
            while quiet < QUIET_ROUNDS and not wake.acquire(timeout=FLUSH_SECONDS):
                before = self.writes
                stream.flush()
                quiet = quiet + 1 if self.writes == before else 0
            stream.reconfigure(line_buffering=lines, write_through=True)
        except BaseException:
            pass  # closed or replaced under way; the next run makes a new one
        finally:
            if self.wake is wake:
                self.wake = None
            try:
                # From now on the buffer writes by itself, and no longer waits for this.
                buffer.flush()
            except Exception:
                pass
            ended.release()

    def settle(self):
        """Ends the burst; everything is written, and pieces are written at once again."""
        wake = self.wake
        if wake is not None and not self.starting:
            ended = self.ended
            try:
                wake.release()
            except RuntimeError:
                pass  # told already, by another thread
            ended.acquire()
            ended.release()

    def before(self, event, arguments):
        if self.wake is not None and event in ENDS_BURST:
            self.settle()

    def end_before(self, module, name):
        """Has functions that end the process at once write the burst before."""
        function = getattr(module, name)

        def leave(*arguments, **options):
            self.settle()
            flush_c()
            return function(*arguments, **options)

        leave.__name__ = leave.__qualname__ = name
        leave.__module__, leave.__doc__ = module.__name__, function.__doc__
        setattr(module, name, leave)

    def forget(self):
        """Forgets the thread, which does not exist in a forked child."""
        self.wake = None


class Streams:
    """The three streams. `restore` undoes before each run what the last one broke; a stream that code has put in the place
    of one of them stays there."""

    def __init__(self):
        self.burst = Burst()
        self.errors = Steady()
        self.spares = self.identities = ()
        self.stdout = self.stderr = self.stdin = self.notes = None
        self.open()

    def adopt(self):
        """Records the descriptors, which are now the worker's."""
        self.spares = [fcntl(number, F_DUPFD_CLOEXEC, 102) for number in range(3)]
        self.identities = [_identity(number) for number in range(3)]

    def abandon(self):
        """Closes the recorded descriptors, which belong to another process again."""
        for spare in self.spares:
            close(spare)
        self.spares = self.identities = ()

    def deliver_by(self, deliver_interrupt):
        """Sets the function that raises interrupts which wait, before something is written."""
        self.burst.deliver_interrupt = self.errors.deliver_interrupt = deliver_interrupt

    def restore(self):
        self.burst.writes = 0
        self.burst.since = 0.0
        self.reconnect()
        self.open()

    def are_in_place(self):
        """Returns true when the interpreter's streams are these, and open.

        A handler of a signal may change them between two runs.
        """
        try:
            return (
                self.are_own()
                and sys.__stdout__ is self.stdout
                and sys.__stderr__ is self.stderr
                and sys.__stdin__ is self.stdin
                and not (self.stdout.closed or self.stderr.closed or self.stdin.closed)
            )
        except Exception:
            return False  # taken apart

    def are_own(self):
        """Returns true when code has replaced none of them."""
        streams = vars(sys)
        return all(streams.get(name) is getattr(self, name) for name in STREAMS)

    def put_in_place(self):
        """Has the interpreter use these again, but for what code has replaced by a stream that works. Runs user code."""
        for name in STREAMS:
            if vars(sys).get(name) is not getattr(self, name) and not _works(name):
                setattr(sys, name, getattr(self, name))

    def lend(self):
        """Has the interpreter use these for one program. Returns what undoes that."""
        replaced = {name: vars(sys).get(name) for name in STREAMS if vars(sys).get(name) is not getattr(self, name)}

        def give_back():
            for name in STREAMS:
                stream = replaced.get(name)
                setattr(sys, name, getattr(self, name) if stream is None else stream)

        for name in STREAMS:
            setattr(sys, name, getattr(self, name))
        return give_back

    def flush_replaced(self):
        """Flushes streams of code that replace these: that is output of this run. Runs user code."""
        for name in OUTPUTS:
            stream = vars(sys).get(name)
            if stream is not None and stream is not getattr(self, name):
                stream.flush()

    def reconnect(self):
        """Restores the descriptors; raises `Lost` when that fails."""
        number = 0
        for identity in self.identities:
            if _identity(number) != identity:
                self.bring_back(number, identity)
            number += 1

    def bring_back(self, number, identity):
        try:
            dup2(self.spares[number], number)
        except OSError:
            pass  # closed as well
        if _identity(number) != identity:
            raise Lost("code has closed or replaced descriptor %d, and the copy of it" % number)

    def open(self):
        """Makes the streams that are missing or were altered. They name descriptors only by number, so the zygote can make them
        for its workers.
        """
        for name, errors in STREAMS.items():
            own = getattr(self, name)
            if not _is_usable(own, errors):
                made = self.make(name)
                setattr(self, name, made)
                if own is None or vars(sys).get(name) is own:
                    setattr(sys, name, made)
            setattr(sys, "__%s__" % name, getattr(self, name))
        self.burst.stream = self.stdout
        if self.notes is None:
            self.notes = self.make("stderr")
            # No interrupt is raised in a stream that is not code's.
            self.notes.buffer._burst = Steady()

    def make(self, name):
        if name == "stdin":
            return _open_stdin()
        buffer = _Output(_Standard(1 if name == "stdout" else 2, "w", closefd=False))
        buffer._burst = self.burst if name == "stdout" else self.errors
        return _text(buffer, "<%s>" % name, "w", STREAMS[name])

    def give_stdin(self, file):
        """Makes a descriptor the standard input of one run. Returns what undoes that."""
        former = None if vars(sys).get("stdin") is self.stdin else vars(sys).get("stdin")
        dup2(file, 0)
        close(file)
        given = sys.stdin = sys.__stdin__ = self.stdin = _open_stdin()

        def take_back():
            dup2(self.spares[0], 0)
            self.stdin = sys.__stdin__ = _open_stdin()
            if vars(sys).get("stdin") is given:
                sys.stdin = self.stdin if former is None else former

        return take_back

    def flush(self):
        self.burst.settle()
        flush_c()
        for stream in (self.stdout, self.stderr):
            try:
                stream.flush()
            except Exception:
                self.flush_after_all(stream)

    def flush_after_all(self, stream):
        """Writes to the run what could not be written where user code led it. In the stream it would become output of the next
        run.
        """
        try:
            self.reconnect()
            set_blocking(1, True)
            set_blocking(2, True)
            stream.flush()
        except Exception:
            pass  # closed by user code, or not read any more

    def mark(self, run, number):
        """Marks what was written so far, in both pipes: user code may have led the streams elsewhere. Returns the number of the
        mark in each, and 0 where there is none.
        """
        flush_c()
        mark = MARK + run.to_bytes(8, "little", signed=True) + number.to_bytes(8, "little")
        return [
            number if self.write_mark(stream, standard, mark) else 0
            for standard, stream in ((1, self.stdout), (2, self.stderr))
        ]

    def write_mark(self, stream, standard, mark):
        """Writes a mark. Short writes to a pipe are never cut."""
        try:
            stream.flush()
        except Exception:
            pass  # closed by user code, or full and not to be waited for
        pipe = self.spares[standard]
        try:
            if _identity(pipe) != self.identities[standard]:
                return False
            while True:
                try:
                    return write(pipe, mark) == len(mark)
                except BlockingIOError:
                    _wait_for_room(pipe)
        except OSError:
            return False  # it is not read any more

    def note(self, line):
        """Writes a line of ours on standard error, whatever code has made of the stream of that name."""
        try:
            self.stderr.flush()
        except Exception:
            pass  # closed by user code
        try:
            self.notes.write(line + "\n")
            self.notes.flush()
        except Exception:
            pass


def _works(name):
    """Returns true when a stream of code can be used. Runs user code."""
    stream = vars(sys).get(name)
    try:
        usable = callable(stream.readline if name == "stdin" else stream.write)
        return usable and not getattr(stream, "closed", False)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False


def _identity(number):
    try:
        return fstat(number)[1:3]  # inode and device
    except OSError:
        return None


def _wait_for_room(pipe):
    from select import POLLOUT, poll

    waiting = poll()
    waiting.register(pipe, POLLOUT)
    waiting.poll()


def _text(buffer, name, mode, errors):
    stream = TextIOWrapper(buffer, "utf-8", errors, "\n", line_buffering=mode == "w", write_through=mode == "w")
    stream.mode = mode
    getattr(buffer, "raw", buffer).name = name
    return stream


def _is_usable(stream, errors):
    """Returns true when a stream is as `_text` made it."""
    try:
        return (
            not stream.closed
            and stream.encoding == "utf-8"
            and stream.errors == errors
            and stream.line_buffering == stream.write_through == (stream.mode == "w")
            and len(vars(stream)) == 1
            and not vars(stream.buffer)
        )
    except Exception:
        return False  # never made, or taken apart with `detach`


def _open_stdin():
    return _text(BufferedReader(FileIO(0, "r", closefd=False)), "<stdin>", "r", "surrogateescape")
