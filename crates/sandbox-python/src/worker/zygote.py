"""The zygote: one warm interpreter that forks workers and never runs user code."""

import sys
from _signal import SIG_DFL, SIGCHLD, SIGKILL
from _signal import signal as set_signal
from posix import WNOHANG, _exit, close, fork, getpid, getsid, kill, listdir, open, read, wait4, write
from posix import O_CLOEXEC, O_RDONLY

from _socket import AF_UNIX, CMSG_SPACE, MSG_CMSG_CLOEXEC, SOCK_SEQPACKET, socket

PROTOCOL = 1
START, FORK, REAP = 1, 2, 3
HELLO, FORKED, REAPED, ERROR = 16, 17, 18, 19
CONTROL = 3
PROGRAM = 4
PACKET = 200 * 1024
ERROR_TEXT = 60 * 1024
CLONE_NEWPID = 0x20000000
THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def compiled(program):
    """Returns a file of byte code that does the same as this program, whose text is `program`."""
    import importlib.util

    code = load("bytecode")["compiled"](SOURCES, str(program, "utf-8"), FILE_NAME % "zygote")
    # The interpreter knows byte code by its first bytes; the other fields of the header are unused.
    return importlib.util.MAGIC_NUMBER.ljust(16, b"\0") + code


def thread_count():
    return len(listdir("/proc/self/task"))


def preimport(names, of_template):
    """Imports the modules with their thread pools limited to one thread, or raises."""
    from os import environ

    before = {name: environ.get(name) for name in THREAD_COUNTS}
    environ.update(dict.fromkeys(THREAD_COUNTS, "1"))
    for name in names:
        try:
            import_alone(name)
        except Refusal:
            raise
        except BaseException:
            import traceback

            raise Refusal("cannot import %s\n%s" % (name, traceback.format_exc()))
    if of_template:
        load("template")["take"](of_template, import_if_possible)
    for name, value in before.items():
        if value is None:
            del environ[name]
        else:
            environ[name] = value


def import_alone(name):
    __import__(name)
    threads = thread_count()
    if threads != 1:
        raise Refusal("importing %s left %d threads running" % (name, threads))


def import_if_possible(name):
    try:
        import_alone(name)
    except Refusal:
        raise
    except BaseException:
        pass  # code that needs it imports it, and gets the error then
    if children():
        raise Refusal("importing %s left a process running" % name)


class Refusal(Exception):
    """A request that is refused; its text goes to the host."""


class Zygote:
    def __init__(self):
        self.codec = load("codec")
        self.socket = socket(AF_UNIX, SOCK_SEQPACKET, 0, CONTROL)
        self.workers = set()
        self.imported = []
        self.of_program = False
        self.own_pids = None
        self.in_cell = False
        self.waits = False
        self.heard = self.hears = False

    def send(self, kind, *fields):
        try:
            self.socket.send(self.codec["packet"](kind, *fields))
        except OSError:
            self.finish()

    def fail(self, message):
        cut = message.encode("utf-8", "backslashreplace")[:ERROR_TEXT].decode("utf-8", "ignore")
        self.send(ERROR, self.codec["text"](cut))

    def receive(self):
        self.waits = True
        data, ancillary, _, _ = self.socket.recvmsg(PACKET, CMSG_SPACE(4 * 8), MSG_CMSG_CLOEXEC)
        self.waits = False
        if not data:
            self.finish()
        return data[0], self.codec["split"](data[1:]), self.codec["received_files"](ancillary)

    def start(self):
        kind, fields, files = self.receive()
        if kind != START:
            raise Refusal("the first packet must be a start")
        for file in files:
            write_all(file, compiled(read_all(PROGRAM)))
            close(file)
        close_if_open(PROGRAM)
        self.imported = self.codec["as_texts"](fields[0])
        self.of_program = bool(fields[3])
        if self.of_program:
            self.stop_before_program()
        else:
            self.prepare_driver(self.codec["as_texts"](fields[2]), self.codec["as_number"](fields[1]))
        self.hello()

    def prepare_driver(self, of_template, warm):
        load("hooks")["install"](sys)
        preimport(self.imported, of_template)
        if of_template:
            reset_signals()
        load("worker")["prepare"]()
        load("driver")
        if warm:
            load("warmup")["warm"]()

    def stop_before_program(self):
        try:
            load("program")["prepare"](self.imported, import_if_possible)
        except ValueError as error:
            raise Refusal(str(error))
        reset_signals()
        load("worker")["prepare"](forgets_home=False)

    def hello(self):
        text, several = self.codec["text"], self.codec["several"]
        self.send(
            HELLO,
            self.codec["number"](PROTOCOL),
            text("%d.%d.%d" % sys.version_info[:3]),
            text(sys.executable or ""),
            text(sys.prefix),
            text(sys.base_prefix),
            several(text(path) for path in sys.path),
            self.codec["number"](thread_count()),
            several(text(name) for name in self.imported),
        )

    def serve(self):
        """Handles requests. Returns only in a new worker, with its request."""
        set_signal(SIGCHLD, self.heard_of_death)
        while True:
            kind, fields, files = self.receive()
            forked = None
            try:
                if kind == FORK:
                    request = load("worker")["Request"](self.codec, fields, files)
                    forked = self.fork(request)
                    if forked == 0:
                        return request
                elif kind == REAP:
                    self.reap(self.codec["as_number"](fields[0]))
                else:
                    raise Refusal("unknown request %d" % kind)
            except Refusal as refusal:
                self.fail(str(refusal))
            except Exception as error:
                self.fail("%s: %s" % (type(error).__name__, error))
            finally:
                if forked != 0:
                    for file in files:
                        close(file)

    def fork(self, request):
        threads = thread_count()
        if threads != 1:
            names = ", ".join(self.imported) or "nothing"
            raise Refusal("%d threads are running after importing %s" % (threads, names))
        if not request.isolated:
            if self.in_cell:
                raise Refusal("after an isolated worker this zygote can fork only isolated ones")
            pid = fork()
        else:
            pid = self.fork_into(request.cell)
        if pid == 0:
            set_signal(SIGCHLD, SIG_DFL)
        if pid:
            self.workers.add(pid)
            self.send(FORKED, self.codec["number"](pid))
        return pid

    def fork_into(self, cell):
        """Forks into the process namespace of a cell; only the child is ever in it."""
        setns = load("worker")["setns"]
        if self.own_pids is None:
            self.own_pids = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC)
        setns(cell, CLONE_NEWPID)
        pid = None
        try:
            pid = fork()
            return pid
        finally:
            # Not checked by process id, which may be the same number on both sides.
            if pid != 0:
                self.step_back(setns)

    def step_back(self, setns):
        try:
            setns(self.own_pids, CLONE_NEWPID)
        except PermissionError:
            # An ordinary user has no rights over the host's namespace. The next fork must name a cell of its own.
            self.in_cell = True

    def reap(self, pid):
        if pid not in self.workers:
            raise Refusal("no worker has the process id %d" % pid)
        self.workers.discard(pid)
        kill(pid, SIGKILL)  # does nothing to a process that is already exiting
        _, status, usage = wait4(pid, 0)
        self.clear_orphans()
        number = self.codec["number"]
        self.send(
            REAPED,
            number(pid),
            number(status),
            number(int(usage.ru_utime * 1e6)),
            number(int(usage.ru_stime * 1e6)),
            number(usage.ru_maxrss),
        )

    def heard_of_death(self, signum, frame):
        # Otherwise it may be that of a process which is about to be known as a worker. What is received meanwhile is not
        # handled inside of this: code decides how often it is.
        self.heard = True
        if self.waits and not self.hears:
            self.hears = True
            try:
                while self.heard:
                    self.heard = False
                    self.take_dead_orphans()
            finally:
                self.hears = False

    def take_dead_orphans(self):
        for pid in children():
            if pid not in self.workers:
                try:
                    wait4(pid, WNOHANG)
                except ChildProcessError:
                    pass  # it was reaped since they were listed

    def clear_orphans(self):
        """Kills what dead workers left to this process, until nothing of it is left.

        A process in the session of a live worker is its copy, which exports variables.
        """
        while True:
            self.take_dead_orphans()
            orphans = [pid for pid in children() if not {pid, getsid(pid)} & self.workers]
            if not orphans:
                return
            for pid in orphans:
                kill(pid, SIGKILL)
            for pid in orphans:
                wait4(pid, 0)

    def finish(self):
        """Ends everything, because the host is gone."""
        for pid in self.workers:
            kill(pid, SIGKILL)
        for pid in self.workers:
            wait4(pid, 0)
        self.workers.clear()
        self.clear_orphans()
        _exit(0)

    def run(self):
        reset_signals()
        try:
            self.start()
        except Refusal as refusal:
            self.fail(str(refusal))
            _exit(1)
        request = self.serve()
        self.socket.detach()
        return request


def read_all(file):
    chunks = []
    while True:
        chunk = read(file, 65536)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def write_all(file, data):
    view = memoryview(data)
    while view:
        view = view[write(file, view) :]


def close_if_open(file):
    try:
        close(file)
    except OSError:
        pass


def children():
    """Returns the children of this process, zombies included."""
    path = "/proc/self/task/%d/children" % getpid()
    try:
        file = open(path, O_RDONLY | O_CLOEXEC)
    except OSError:
        return slow_children()
    listed = read_all(file)
    close(file)
    return [int(word) for word in listed.split()]


def slow_children():
    """Returns the children on kernels that do not list them."""
    found = []
    own = getpid()
    for name in listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            file = open("/proc/%s/stat" % name, O_RDONLY | O_CLOEXEC)
        except OSError:
            continue
        try:
            stat = read(file, 4096)
        except OSError:
            continue
        finally:
            close(file)
        if int(stat.rpartition(b")")[2].split()[1]) == own:
            found.append(int(name))
    return found


# A worker that closed it would write to all its parts.
ZYGOTE = Zygote()


def main():
    # Back at the bottom of the stack, the worker starts with no frames of the zygote below it.
    try:
        request = ZYGOTE.run()
    except BaseException:
        import traceback

        # Nothing continues from here, as it would where this is no program but an import.
        traceback.print_exc()
        _exit(1)
    load("worker")["enter"](request)
    if ZYGOTE.of_program:
        load("program")["go_on"](request)
    else:
        load("driver")["serve"](request)


main()
