"""Standard input, output and error of user code.

Standard output is written line by line, so a line is with the host before the next statement
runs. A burst of lines would pay one system call each, so during a burst output is collected in
blocks, and a thread writes out what is there every few milliseconds. The thread ends with the
burst. Before a process is started, collected output is written first, so that its output comes
after it. A program with threads of its own always writes lines.

What is displayed goes another way. So that it keeps its place, marks are written before it.
"""

import sys
from _io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from _thread import _count as thread_count
from _thread import allocate_lock, start_new_thread
from posix import close, dup2, fstat, set_blocking, write
from sys import getswitchinterval, setswitchinterval
from time import monotonic

from fcntl import F_DUPFD_CLOEXEC, fcntl

BURST_LINES = 32
BURST_SECONDS = 0.005
FLUSH_SECONDS = 0.005
QUIET_ROUNDS = 4
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
        "_thread.start_new_thread",
        "_thread.start_joinable_thread",
    )
)


class Lost(Exception):
    """A standard stream cannot be had back, so what code prints would go nowhere."""


class _Output(FileIO):
    """Descriptor 1, counting how fast it is written to."""

    def __init__(self, burst):
        FileIO.__init__(self, 1, "w", closefd=False)
        self._burst = burst

    def write(self, data):
        # An interrupt that met this method had to wait, because raising after the bytes are out
        # would send them twice. Here nothing is out yet.
        self._burst.deliver_interrupt()
        self._burst.wrote()
        return FileIO.write(self, data)


# By this a handler of interrupts knows that bytes may be out. That of workers raises in nothing of the driver's anyway.
WRITE = _Output.write.__code__


class Burst:
    """Switches one text stream between lines and blocks."""

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
        if self.wake is None and self.writes % BURST_LINES == 0:
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
        # Otherwise this thread prints thousands of lines before the other one gets to run.
        setswitchinterval(1e-6)
        try:
            self.start_thread(self.flush_often, self.stream, wake, ended, interval)
        except Exception:
            setswitchinterval(interval)  # no thread to be had; lines it is
            self.wake = None

    def start_thread(self, function, *arguments):
        """A thread of the driver's own, which does not end the burst."""
        former, self.starting = self.starting, True
        try:
            start_new_thread(function, arguments)
        finally:
            self.starting = former

    def flush_often(self, stream, wake, ended, interval):
        try:
            try:
                stream.reconfigure(line_buffering=False)
            finally:
                setswitchinterval(interval)
            quiet = 0
            while quiet < QUIET_ROUNDS and not wake.acquire(timeout=FLUSH_SECONDS):
                before = self.writes
                stream.flush()
                quiet = quiet + 1 if self.writes == before else 0
            stream.reconfigure(line_buffering=True)
        except BaseException:
            pass  # closed or replaced under way; the next run makes a new one
        finally:
            if self.wake is wake:
                self.wake = None
            ended.release()

    def settle(self):
        """Ends the burst; everything is written out and lines are lines again."""
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

    def forget(self):
        """In a forked child the thread does not exist."""
        self.wake = None


class Streams:
    """The three streams; `restore` before each run undoes what the last one did to them."""

    def __init__(self):
        self.burst = Burst()
        self.spares = self.identities = ()
        self.stdout = self.stderr = self.stdin = None
        self.open()

    def adopt(self):
        """The descriptors are now the worker's; remembers them."""
        self.spares = [fcntl(number, F_DUPFD_CLOEXEC, 102) for number in range(3)]
        self.identities = [_identity(number) for number in range(3)]

    def abandon(self):
        """The descriptors are somebody else's again."""
        for spare in self.spares:
            close(spare)
        self.spares = self.identities = ()

    def restore(self):
        self.burst.writes = 0
        self.burst.since = 0.0
        self.reconnect()
        self.open()

    def are_in_place(self):
        """Whether the interpreter's streams are these, and open. What a handler of a signal does between two runs may be
        otherwise."""
        try:
            return (
                sys.stdout is sys.__stdout__ is self.stdout
                and sys.stderr is sys.__stderr__ is self.stderr
                and sys.stdin is sys.__stdin__ is self.stdin
                and not (self.stdout.closed or self.stderr.closed or self.stdin.closed)
            )
        except Exception:
            return False  # taken apart

    def reconnect(self):
        """The descriptors lead where they led at first; or `Lost`."""
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
        """Makes the streams that are missing or were altered. They name descriptors by number
        only, so the zygote can make them for its workers."""
        if not _is_usable(self.stdout, "strict"):
            self.stdout = _text(BufferedWriter(_Output(self.burst)), "<stdout>", "w", "strict")
            self.burst.stream = self.stdout
        if not _is_usable(self.stderr, "backslashreplace"):
            raw = BufferedWriter(FileIO(2, "w", closefd=False))
            self.stderr = _text(raw, "<stderr>", "w", "backslashreplace")
        if not _is_usable(self.stdin, "surrogateescape"):
            self.stdin = _open_stdin()
        sys.stdout = sys.__stdout__ = self.stdout
        sys.stderr = sys.__stderr__ = self.stderr
        sys.stdin = sys.__stdin__ = self.stdin

    def give_stdin(self, file):
        """Standard input of one run is this descriptor."""
        dup2(file, 0)
        close(file)
        sys.stdin = sys.__stdin__ = self.stdin = _open_stdin()

    def take_stdin(self):
        dup2(self.spares[0], 0)
        self.stdin = None

    def flush(self):
        self.burst.settle()
        for stream in (self.stdout, self.stderr):
            try:
                stream.flush()
            except Exception:
                self.flush_after_all(stream)

    def flush_after_all(self, stream):
        """What could not be written where user code led it is output of this run. In the stream it
        would become output of the next one."""
        try:
            self.reconnect()
            set_blocking(1, True)
            set_blocking(2, True)
            stream.flush()
        except Exception:
            pass  # closed by user code, or nobody reads any more

    def mark(self, run, number):
        """Marks what was written so far, in both pipes: user code may have led the streams elsewhere. Returns the
        number of the mark in each, and 0 where there is none."""
        mark = MARK + run.to_bytes(8, "little", signed=True) + number.to_bytes(8, "little")
        return [
            number if self.write_mark(stream, standard, mark) else 0
            for standard, stream in ((1, self.stdout), (2, self.stderr))
        ]

    def write_mark(self, stream, standard, mark):
        """Short writes to a pipe are never cut."""
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
            return False  # nobody reads any more

    def note(self, line):
        """A line of ours on standard error."""
        try:
            self.stderr.write(line + "\n")
        except Exception:
            pass


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
    stream = TextIOWrapper(buffer, "utf-8", errors, "\n", line_buffering=mode == "w")
    stream.mode = mode
    getattr(buffer, "raw", buffer).name = name
    return stream


def _is_usable(stream, errors):
    """Whether a stream is as `_text` made it."""
    try:
        return (
            not stream.closed
            and stream.encoding == "utf-8"
            and stream.errors == errors
            and stream.line_buffering == (stream.mode == "w")
            and len(vars(stream)) == 1
            and not vars(stream.buffer)
        )
    except Exception:
        return False  # never made, or taken apart with `detach`


def _open_stdin():
    return _text(BufferedReader(FileIO(0, "r", closefd=False)), "<stdin>", "r", "surrogateescape")
