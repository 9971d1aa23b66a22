"""The processes of a container: starts, watches, signals and reaps them, and records which of them started which.

Each process that is started here adopts its orphans (PR_SET_CHILD_SUBREAPER), so that what a program has
started stays below it. What it leaves behind at its end comes to this process, which sees that end at once
and records where the orphans came from.
"""

import sys
from os import P_ALL, WEXITED, WNOWAIT, openpty
from posix import O_CLOEXEC, O_RDONLY, O_WRONLY, WNOHANG
from posix import _exit, chdir, close, dup, dup2, execve, fork, getpid, kill, nice, open, pipe2
from posix import read, setsid, umask, wait4, waitid, waitpid, write
from _signal import SIGCONT, SIGKILL, SIGSTOP
from resource import setrlimit
from select import POLLIN, poll
from time import CLOCK_BOOTTIME, clock_gettime, sleep

from _socket import AF_UNIX, SOCK_STREAM, socketpair
from fcntl import ioctl
from termios import TIOCSCTTY, TIOCSWINSZ

STARTED, NOT_STARTED, EXIT = 17, 18, 20
STDIN, STDOUT, STDERR, CONTROL = range(4)  # the streams of a process, in the lowest bits
NEW_PROCESS, DIRECTORY, PROGRAM = b"n", b"d", b"p"
TICKS = 100  # of the kernel's clock for processes, everywhere
ROUNDS = 2000
CROWD = 16
POLL_INTERVAL = 0.001
LAST_ROUNDS = 2000
LAST_POLL_INTERVAL = 0.0005
SIGINT = 2
HELD_BACK = 0.05
# How often, and for how many milliseconds each time, to wait until a new process is its program.
BECOMING_ROUNDS, BECOMING = 250, 20
# The flag of a process that has executed nothing yet (PF_FORKNOEXEC).
ONLY_FORKED = 0x40
# Not empty once this kernel has shown that flag of a process: not every kernel does.
TELLS_OF_FORKS = []
ETIMEDOUT = 110
NICE = 10

codec = load("codec")
pipes = load("pipes")
worker = load("worker")
kernel = load("processes")
seccomp = load("seccomp")
number, as_number = codec["number"], codec["as_number"]
Source, Sink = pipes["Source"], pipes["Sink"]
processes, look, below, own_children, process_count, kills_for_memory = (
    kernel[name]
    for name in ("processes", "look", "below", "own_children", "process_count", "kills_for_memory")
)


class Child:
    """A process that the host has started."""

    def __init__(self, children, key, pid, is_worker):
        self.children, self.key, self.pid, self.is_worker = children, key, pid, is_worker
        self.sources = []
        self.input = None
        self.read_bytes = -1
        self.control = None
        self.copy = None  # the socket of a checkpoint
        self.terminal = None
        self.status = None
        self.told = False
        self.label = None  # of a command that outlives its client
        self.context = None  # the name of a worker that outlives its client
        self.fields = None  # the request that it was started with
        self.parked = None  # while it has no client
        self.kills = kills_for_memory()

    def heard(self):
        """Records a request: processes that the kernel has killed before do not concern it."""
        self.kills = kills_for_memory()

    def connect(self, streams):
        """Sets the streams of an interpreter."""
        agent, key = self.children.agent, self.key
        self.sources = [
            Source(agent, streams.out, key << 2 | STDOUT),
            Source(agent, streams.err, key << 2 | STDERR),
        ]
        self.sources.append(
            pipes["ControlSource"](agent, streams.told, key << 2 | CONTROL, list(self.sources))
        )
        self.control = pipes["ControlSink"](agent, streams.control, key << 2 | STDIN, self.heard)

    def died(self, status, usage):
        if self.input is not None:
            self.read_bytes = self.input.read_bytes()
        # The kernel does not show which process it was: one that has ended since this one started.
        by_kernel = status & 0x7F == SIGKILL and kills_for_memory() > self.kills
        self.status = (
            status,
            int(by_kernel),
            int(usage.ru_utime * 1e6),
            int(usage.ru_stime * 1e6),
            usage.ru_maxrss * 1024,
        )
        if self.parked is not None:
            self.parked.close()
            return
        self.finish()

    def finish(self):
        """Reports its end, after everything that it has written."""
        if self.told or self.status is None:
            return
        for source in self.sources:
            if not source.drain():
                for each in self.sources:
                    each.dependents.append(self.finish)
                return
        self.told = True
        self.children.agent.count_killed()
        about = [number(value) for value in (self.key, *self.status, self.read_bytes)]
        self.children.agent.tell(EXIT, *about)
        if self.is_worker:
            self.children.close_streams(self)


class Streams:
    """The streams of an interpreter: ours, and its control stream, standard input, output and error."""

    def __init__(self):
        self.control, theirs = socketpair(AF_UNIX, SOCK_STREAM)
        self.theirs = [theirs.detach()]
        self.ours = []
        try:
            self.told = self.keep(dup(self.control.fileno()))
            self.theirs.append(open("/dev/null", O_RDONLY | O_CLOEXEC))
            self.out, self.err = [self.keep(self.output()) for _ in range(2)]
        except OSError:
            self.close_ours()
            self.close_theirs()
            raise

    def output(self):
        near, far = pipe2(O_CLOEXEC)
        self.theirs.append(far)
        return near

    def keep(self, fd):
        self.ours.append(fd)
        return fd

    def close_ours(self):
        self.control.close()
        for fd in self.ours:
            close(fd)

    def close_theirs(self):
        for fd in self.theirs:
            close(fd)


class Children:
    STARTED = STARTED

    def __init__(self, agent):
        self.agent = agent
        self.checkpoints = load("checkpoints")["Checkpoints"](self)
        self.pauser = load("pause")["Pauser"]()
        self.all = {}
        self.owners = {}  # by process id: the child that it is, or that has left it behind

    # Starting.

    def spawn(self, fields):
        key = as_number(fields[0])
        argv, env = codec["split"](fields[1]), codec["split"](fields[2])
        env = dict(zip(env[::2], env[1::2]))
        has_stdin, has_terminal, rows, columns = [as_number(field) for field in fields[4:8]]
        label = codec["as_text"](fields[8])
        if self.agent.resident is not None and not argv:
            if not self.agent.resident.adopt_command(label, key):
                self.not_started(key, NEW_PROCESS, 2)
            return
        ours, theirs, said = [], [], []
        try:
            if has_terminal:
                near, far = openpty()
                ioctl(near, TIOCSWINSZ, window(rows, columns))
                ours, theirs = [near, dup(near), far], [far, far, far]
            else:
                for place in (STDIN, STDOUT, STDERR):
                    if place == STDIN and not has_stdin:
                        theirs.append(open("/dev/null", O_RDONLY | O_CLOEXEC))
                        ours.append(None)
                        continue
                    reading, writing = pipe2(O_CLOEXEC)
                    ours.append(writing if place == STDIN else reading)
                    theirs.append(reading if place == STDIN else writing)
            status, tell = said[:] = pipe2(O_CLOEXEC)
            ready = poll()
            ready.register(status, POLLIN)
            pid = fork()
        except OSError as error:
            for fd in ours + theirs + said:
                if fd is not None:
                    close_quietly(fd)
            return self.not_started(key, NEW_PROCESS, error.errno)
        if pid == 0:
            become_program(self, theirs, tell, argv, env, fields[3], has_terminal)
        # At first the new process mostly runs on the processor of this one, and continues when this one waits.
        close(tell)
        problem = said_before_the_program(status, ready, pid)
        close(status)
        if not has_terminal:
            for fd in theirs:
                close(fd)
        if problem:
            for fd in ours:
                if fd is not None:
                    close(fd)
            return self.not_started(key, *problem)
        child = self.add(key, pid, False)
        if self.agent.resident is not None and label:
            child.label = label
        if has_terminal:
            child.terminal = ours[2]
            Sink(self.agent, ours[1], key << 2 | STDIN)
            child.sources.append(Source(self.agent, ours[0], key << 2 | STDOUT, True))
        else:
            if ours[STDIN] is not None:
                child.input = pipes["ProgramSink"](self.agent, ours[STDIN], key << 2 | STDIN)
            for place in (STDOUT, STDERR):
                child.sources.append(Source(self.agent, ours[place], key << 2 | place))

    def not_started(self, key, stage, errno):
        self.agent.say(NOT_STARTED, number(key), number(stage[0]), number(errno))

    def add(self, key, pid, is_worker):
        child = Child(self, key, pid, is_worker)
        self.all[key] = child
        self.owners[pid] = child
        self.agent.say(STARTED, number(key), number(pid))
        return child

    def start_worker(self, fields):
        """Starts a worker, or gives the client the one of that context that is there."""
        key, context = as_number(fields[0]), codec["as_text"](fields[3])
        resident = self.agent.resident
        if resident is None or not context or not resident.adopt(context, key):
            self.start_new_worker(key, fields)

    def start_new_worker(self, key, fields):
        try:
            streams = self.new_streams()
        except OSError as error:
            return self.not_started(key, NEW_PROCESS, error.errno)
        try:
            pid = fork()
        except OSError as error:
            streams.close_ours()
            streams.close_theirs()
            return self.not_started(key, NEW_PROCESS, error.errno)
        if pid == 0:
            control, *standard = streams.theirs
            self.agent.become(WorkerRequest(fields, control, standard, self.open_files))
        streams.close_theirs()
        child = self.add(key, pid, True)
        if self.agent.resident is not None:
            child.context, child.fields = codec["as_text"](fields[3]), fields
        child.connect(streams)

    def interrupt_quietly(self, pid):
        kill_quietly(pid, SIGINT)

    def kill_parked(self, child):
        """Kills a worker that has no client, with everything that it has started."""
        for _ in range(ROUNDS):
            self.reap()
            alive = self.members(child)
            if not alive:
                return
            for signal in (SIGSTOP, SIGKILL):
                for pid in alive:
                    kill_quietly(pid, signal)
            yield POLL_INTERVAL

    @staticmethod
    def new_streams():
        return Streams()

    # Signals.

    def signal(self, key, signal, tree):
        child = self.all.get(key)
        if child is None:
            return
        if tree:
            for pid in self.members(child):
                kill_quietly(pid, signal)
        elif child.control is not None and signal == SIGINT and child.control.queue:
            # The interrupt is for the request whose end is still on its way.
            self.interrupt_later(child)
        elif child.status is None:
            if signal == SIGINT:
                self.agent.requests.keep_quiet()
            kill_quietly(child.pid, signal)

    def interrupt_later(self, child):
        done = []

        def interrupt():
            if not done and child.status is None:
                kill_quietly(child.pid, SIGINT)
            done.append(True)

        child.control.once_written.append(interrupt)
        self.agent.requests.later(HELD_BACK, interrupt)

    def resize(self, key, rows, columns):
        child = self.all.get(key)
        if child is not None and child.terminal is not None:
            ioctl(child.terminal, TIOCSWINSZ, window(rows, columns))

    # Trees.

    def members(self, child, started=None):
        """Returns the live processes of its tree; with `started`, what is below it and was started then."""
        roots = {pid for pid, owner in self.owners.items() if owner is child}
        if not roots:
            return []
        table, below = processes(), {}
        for pid, about in table.items():
            below.setdefault(about[0], []).append(pid)
        if started is not None:
            roots = {pid for pid in below.get(child.pid, ()) if started(table[pid][1])}
        found = [pid for pid in roots if pid in table]
        for pid in found:
            found += [other for other in below.get(pid, ()) if other not in roots]
        return [pid for pid in found if table[pid][2] not in b"ZXx"]

    def kill_tree(self, key, request):
        child = self.all.get(key)
        if child is None:
            return []
        stopped = set()
        is_held = self.pauser.before is not None
        if getpid() == 1 and not is_held and process_count() > CROWD and child in self.owners.values():
            self.kill_in_a_crowd(child)
        for _ in range(ROUNDS):
            self.reap()
            alive = self.members(child)
            if not alive:
                if self.owners.get(child.pid) is not child:
                    break
                yield POLL_INTERVAL  # dead, and its status is still to come
                continue
            new = [pid for pid in alive if pid not in stopped]
            # A stopped process starts nothing more.
            for pid in new:
                kill_quietly(pid, SIGSTOP)
            stopped.update(new)
            if not new or len(alive) == 1:
                for pid in alive:
                    kill_quietly(pid, SIGKILL)
                stopped.clear()
                yield POLL_INTERVAL
        child.finish()
        return [number(value) for value in child.status or ()]

    def kill_in_a_crowd(self, child):
        """Kills a tree among many processes, which leave this one little time. All are stopped while the tree is killed."""
        kill_quietly(-1, SIGSTOP)
        doomed = set(self.members(child))
        for pid in doomed:
            kill_quietly(pid, SIGKILL)
        for pid in processes():
            if pid not in doomed and pid != getpid():
                kill_quietly(pid, SIGCONT)

    def clock(self):
        """Returns the time in which start times of processes are measured, in microseconds."""
        return [number(int(clock_gettime(CLOCK_BOOTTIME) * 1_000_000))]

    def end_started(self, key, since, former, request):
        """Kills what a worker has started since then, and not what may be older. Both are times of `clock`."""
        child = self.all.get(key)
        if child is None or child.status is not None:
            return []
        since = since * TICKS // 1_000_000 - 1
        former = former * TICKS // 1_000_000 if former >= 0 else -1
        for _ in range(ROUNDS):
            alive = self.members(child, lambda start: start >= since and start > former)
            if not alive:
                return []
            for signal in (SIGSTOP, SIGKILL):
                for pid in alive:
                    kill_quietly(pid, signal)
            yield POLL_INTERVAL
        return []

    # The end.

    def reap(self):
        while True:
            try:
                dead = waitid(P_ALL, 0, WEXITED | WNOHANG | WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            pid = dead.si_pid
            owner = self.owners.get(pid)
            # Before it is reaped: what it has left behind is here by now.
            self.take_in(owner)
            _, status, usage = wait4(pid, 0)
            self.owners.pop(pid, None)
            if owner is not None and owner.pid == pid:
                owner.died(status, usage)

    def take_in(self, owner):
        """Records the origin of new children of this process."""
        new = [pid for pid in own_children() if pid not in self.owners]
        if not new:
            return
        leaders = {child.pid: child for child in self.owners.values() if child is not None}
        for pid in new:
            about = look(pid)
            whose = leaders.get(about[3]) if about else None
            self.owners[pid] = whose or owner

    def forget(self, key, end):
        """Drops a process. Its tree is killed on demand, and otherwise lives on."""
        self.checkpoints.drop(key)
        child = self.all.get(key)
        if child is None:
            return
        if end:
            self.agent.requests.run(self.kill_and_forget(key, child))
        else:
            self.drop(key, child)

    def kill_and_forget(self, key, child):
        yield from self.kill_tree(key, None)
        self.drop(key, child)

    def drop(self, key, child):
        self.all.pop(key, None)
        self.close_streams(child)
        for pid, owner in list(self.owners.items()):
            if owner is child and pid != child.pid:
                self.owners[pid] = None

    def close_streams(self, child):
        for source in child.sources:
            source.forget()
        if child.control is not None:
            child.control.forget()
        if child.copy is not None:
            child.copy.close()
            child.copy = None
        if child.terminal is not None:
            close(child.terminal)
            child.terminal = None

    def end_everything(self):
        """Kills all processes. Returns true when all of them are dead in time."""
        for _ in range(LAST_ROUNDS):
            if getpid() == 1:
                kill_quietly(-1, SIGKILL)  # all others that there are
            else:
                # A process that one of them has just started is not below this one until its parent is dead.
                for pid in below(getpid()):
                    kill_quietly(pid, SIGKILL)
            try:
                while waitpid(-1, WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return True
            sleep(LAST_POLL_INTERVAL)
        return False


class WorkerRequest:
    """What `worker.py` needs of a new worker."""

    isolated = confined = False
    uid = gid = 0
    subreaper = True
    cell = ruleset = None
    filter = b""
    self_check = ""

    def __init__(self, fields, control, standard, open_files):
        self.rlimits = (open_files,)
        self.env = fields[1]
        self.work_dir = codec["as_text"](fields[2])
        self.control, self.standard = control, standard

    def environment(self):
        return codec["as_pairs"](self.env)


def said_before_the_program(status, ready, pid):
    """Reads the report of a new process that cannot be the program: the stage, and the reason.

    Other processes of its user can stop it before that, and it is killed then. They can keep its end of the pipe open, too,
    so the kernel is asked whether it is the program already: only after a while, because asking delays the process.
    """
    problem = b""
    is_program = is_stopped = False
    if not TELLS_OF_FORKS:
        progress(look(pid))
    for _ in range(BECOMING_ROUNDS):
        if ready.poll(0 if is_program else BECOMING):
            problem = read(status, 64)
            if not problem:
                return None
            break
        if is_program:
            return None
        if is_stopped:
            break
        is_program, is_stopped = progress(look(pid))
    kill_quietly(pid, SIGKILL)
    stage, errno = problem[:1], problem[1:]
    if stage in (NEW_PROCESS, DIRECTORY, PROGRAM) and errno.isdigit():
        return stage, int(errno)
    return NEW_PROCESS, ETIMEDOUT


def progress(about):
    """Returns whether a new process has become its program, or has ended, as the kernel shows; and whether it is stopped."""
    if about is None:
        return False, False
    _, _, state, _, flags = about
    if flags & ONLY_FORKED and not TELLS_OF_FORKS:
        TELLS_OF_FORKS.append(True)
    executes = bool(TELLS_OF_FORKS) and not flags & ONLY_FORKED
    return executes or state in (b"Z", b"X"), state in (b"T", b"t")


def become_program(children, files, tell, argv, env, directory, has_terminal):
    """Becomes the program, in the new process. Never returns."""
    stage = NEW_PROCESS
    try:
        children.agent.reset_ignored_signals()
        resource, *limits = children.open_files
        setrlimit(resource, limits)
        setsid()
        for place, fd in enumerate(files):
            dup2(fd, place)
        if tell != 3:
            dup2(tell, 3, False)
        worker["_close_range"](4, worker["MAX_FILES"])
        if has_terminal:
            ioctl(0, TIOCSCTTY, 0)
        umask(0o022)
        # Only now, with nothing of the agent left open here and no right of the agent left, may others access this process.
        seccomp["give_up_calls"]()
        worker["prctl"](worker["PR_SET_DUMPABLE"], 1)
        worker["prctl"](worker["PR_SET_CHILD_SUBREAPER"], 1)
        if children.agent.resident is None:
            # Elsewhere the provider decides: an image may have programs such as sudo.
            worker["prctl"](worker["PR_SET_NO_NEW_PRIVS"], 1)
        stand_back()
        stage = DIRECTORY
        chdir(directory)
        stage = PROGRAM
        execute(argv, env)
    except OSError as error:
        write(3, stage + str(error.errno).encode())
    except BaseException:
        write(3, stage + b"22")
    finally:
        _exit(127)


def stand_back():
    """Lets processes end before the agent when memory runs out, and wait for it when all want to run at once."""
    worker["_write_if_possible"]("/proc/self/oom_score_adj", b"1000")
    nice(NICE)


def execute(argv, env):
    name = argv[0]
    if b"/" in name:
        execve(name, argv, env)
    denied = None
    for directory in env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":"):
        try:
            execve((directory or b".") + b"/" + name, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
    raise denied or FileNotFoundError(2, "")


def window(rows, columns):
    return b"".join(value.to_bytes(2, sys.byteorder) for value in (rows, columns, 0, 0))


def kill_quietly(pid, signal):
    try:
        kill(pid, signal)
    except OSError:
        pass  # it is gone


def close_quietly(fd):
    try:
        close(fd)
    except OSError:
        pass
