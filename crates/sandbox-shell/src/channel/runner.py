"""Runs commands for one client over a terminal: frames in both directions, many commands at once.

A frame is its kind (1 byte), the number of a command (4 bytes), the length of the rest (4 bytes), all
little-endian, and the rest. The output of a command is read as long as the client has room for it, and
kept until the client has taken it: a client whose connection broke says what has arrived, and gets what
has not. A command whose request has a word reports its start and its exit in its output, as the commands
of other ways do. The input of a command is numbered by bytes, so that what is sent again is taken once.
When the client is gone, the inputs end, and the output of what still runs is read and dropped. The client
ends a command whose time is over; one that is gone cannot, so the command is ended here a little later.
"""

import json
import os
import signal
from binascii import a2b_base64
from collections import deque
from errno import EACCES, ENOENT, ENOEXEC, ENOTDIR, EPERM
from fcntl import ioctl
from select import POLLIN, POLLOUT, poll
from struct import iter_unpack, pack, unpack
from termios import FIONREAD
from time import monotonic

START, ACKNOWLEDGE, PING, LEAVE, ENVIRONMENT, RESUME, INPUT, END_INPUT = range(1, 9)
OUT, ERR, END, PONG, UNKNOWN, READY, TAKEN, CLOSED = range(1, 9)
NONCE_SIZE = 16
# Bytes of the output of one command that the client has not taken.
WINDOW = 1 << 20
CHUNK = 64 << 10
# Bytes that wait to be written to the terminal; from then on no output is read.
MAX_WAITING = 256 << 10
# Seconds without a frame after which the client is gone.
LEASE = 60.0
# Seconds that the client has to end a command whose time is over.
GRACE = 5.0
# Set by a shell for itself.
OF_A_SHELL = (b"_", b"PWD", b"OLDPWD", b"SHLVL")
# Python ignores some, and programs expect the usual handling.
HANDLED = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]


class Stream:
    """One output of a command."""

    def __init__(self, command, kind, fd):
        self.command, self.kind, self.fd = command, kind, fd
        # Bytes that the command has written before its end and that are still to be read.
        self.left = None
        os.set_blocking(fd, False)

    def read(self, runner):
        size = min(CHUNK, self.command.room())
        if size <= 0:
            return  # the other stream has taken the room
        if self.left:
            size = min(size, self.left)
        try:
            data = os.read(self.fd, size)
        except BlockingIOError:
            return
        if not data:
            os.close(self.fd)
            self.fd = None
            if self.left:
                self.left = 0
                self.report_exit(runner)
            self.command.finish(runner)
            return
        self.command.put(runner, self.kind, data)
        if self.left:
            self.left -= len(data)
            self.report_exit(runner)

    def ended(self, runner):
        """Notes that the command has ended: its exit is reported behind what it has written."""
        self.left = 0
        if self.fd is not None:
            self.left = unpack("i", ioctl(self.fd, FIONREAD, pack("i", 0)))[0]
        self.report_exit(runner)

    def report_exit(self, runner):
        if self.left:
            return
        command = self.command
        if command.word:
            command.put(runner, self.kind, b"%s exited %d\n" % (command.word, command.status))
        command.unreported -= 1
        if command.unreported == 0:
            # Until now the number of the process was that of no other one.
            os.waitpid(command.pid, 0)
        command.finish(runner)


class Input:
    """The standard input of a command."""

    def __init__(self, fd):
        self.fd = fd
        self.waiting = bytearray()
        self.given = self.taken = 0  # bytes
        self.is_ended = False
        os.set_blocking(fd, False)

    def give(self, start, data):
        if start <= self.given < start + len(data):
            self.waiting += data[self.given - start :]
            self.given = start + len(data)

    def write(self, runner, number):
        if self.fd is None:
            return
        try:
            while self.waiting:
                count = os.write(self.fd, self.waiting)
                del self.waiting[:count]
                self.taken += count
        except BlockingIOError:
            pass
        except OSError:
            self.close()  # the command has closed it
            runner.send(CLOSED, number)
            return
        runner.send(TAKEN, number, pack("<Q", self.taken))
        if self.is_ended and not self.waiting:
            self.close()

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Command:
    def __init__(self, number, word, limit):
        self.number, self.word, self.pid = number, word, None
        self.end_at = None if limit is None else monotonic() + limit + GRACE
        self.sent = self.taken = 0  # bytes
        self.kept = deque()  # what the client has not taken: where it ends, its kind, its bytes
        self.status = None
        self.unreported = 2
        self.streams = ()
        self.input = None
        self.is_over = False

    def room(self):
        return WINDOW - self.sent + self.taken

    def put(self, runner, kind, data):
        self.sent += len(data)
        if not runner.has_client:
            self.taken = self.sent
            return
        self.kept.append((self.sent, kind, data))
        runner.send(kind, self.number, data)

    def acknowledge(self, count):
        self.taken = min(max(self.taken, count), self.sent)
        while self.kept and self.kept[0][0] <= self.taken:
            self.kept.popleft()

    def resume(self, runner, received):
        for end, kind, data in self.kept:
            if end > received:
                runner.send(kind, self.number, data)

    def end(self, runner, status):
        self.is_over = True
        if self.input is not None:
            self.input.close()
        self.put(runner, END, pack("<i", status))

    def look(self, runner):
        """Looks whether the command has ended."""
        if self.pid is None or self.status is not None:
            return
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return
        self.status = found.si_status + (0 if found.si_code == os.CLD_EXITED else 128)
        for stream in self.streams:
            stream.ended(runner)

    def end_late(self):
        """Kills what has the session of the command, when its time is over."""
        if self.end_at is None or self.pid is None or self.status is not None or monotonic() < self.end_at:
            return
        for name in os.listdir("/proc"):
            if name.isdigit() and session(name) == self.pid:
                try:
                    os.kill(int(name), signal.SIGKILL)
                except OSError:
                    pass  # it has ended meanwhile

    def finish(self, runner):
        if not self.is_over and self.unreported == 0 and all(stream.fd is None for stream in self.streams):
            self.end(runner, self.status)


class Runner:
    def __init__(self):
        self.commands = {}
        self.seen = set()
        self.environment = {}
        self.buffer = bytearray()
        self.waiting = bytearray()
        self.has_client = True
        self.heard = monotonic()
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.deaths, told = os.pipe()
        os.set_blocking(self.deaths, False)
        os.set_blocking(told, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def send(self, kind, number, data=b""):
        if self.has_client:
            self.waiting += pack("<BII", kind, number, len(data)) + data

    def leave(self):
        """The client is gone: what still runs has all the room."""
        self.has_client = False
        self.waiting.clear()
        for command in self.commands.values():
            command.acknowledge(command.sent)
            if command.input is not None:
                command.input.close()

    def forget(self):
        """Forgets commands whose end the client has."""
        for number in [number for number, command in self.commands.items() if command.is_over]:
            if not self.commands[number].kept:
                del self.commands[number]

    def resume(self, rest):
        """Sends a client that has connected again what has not arrived, behind the nonce that it has chosen."""
        received = dict(iter_unpack("<IQ", rest[NONCE_SIZE:]))
        self.waiting.clear()
        self.waiting += rest[:NONCE_SIZE]
        for number, command in self.commands.items():
            if number in received:
                command.resume(self, received[number])
                if command.input is not None:
                    command.input.write(self, number)
            else:
                command.acknowledge(command.sent)
        for number in received:
            if number not in self.commands:
                self.send(UNKNOWN, number)
        self.forget()

    def run(self):
        while self.has_client or self.commands:
            waits = poll()
            waits.register(self.deaths, POLLIN)
            if self.has_client:
                waits.register(0, POLLIN)
                if self.waiting:
                    waits.register(1, POLLOUT)
            inputs = {}
            for command in self.commands.values():
                if command.input is not None and command.input.fd is not None and command.input.waiting:
                    inputs[command.input.fd] = command
                    waits.register(command.input.fd, POLLOUT)
            streams = {}
            if len(self.waiting) < MAX_WAITING:
                for command in self.commands.values():
                    for stream in command.streams:
                        if stream.fd is not None and command.room() > 0:
                            streams[stream.fd] = stream
                            waits.register(stream.fd, POLLIN)
            for fd, _ in waits.poll(1000 if any(command.end_at for command in self.commands.values()) else 5000):
                if fd in streams:
                    streams[fd].read(self)
                elif fd in inputs:
                    inputs[fd].input.write(self, inputs[fd].number)
                elif fd == 0:
                    self.receive()
                elif fd == self.deaths:
                    self.count_deaths()
            self.flush()
            for command in self.commands.values():
                command.end_late()
            if self.has_client and monotonic() - self.heard > LEASE:
                self.receive()  # this process may have been paused
                if monotonic() - self.heard > LEASE:
                    self.leave()
            if not self.has_client:
                self.forget()

    def count_deaths(self):
        try:
            os.read(self.deaths, 4096)
        except BlockingIOError:
            pass
        for command in list(self.commands.values()):
            command.look(self)

    def flush(self):
        while self.waiting:
            try:
                del self.waiting[: os.write(1, self.waiting)]
            except BlockingIOError:
                return
            except OSError:
                self.leave()

    def receive(self):
        try:
            data = os.read(0, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.leave()
            return
        self.heard = monotonic()
        self.buffer += data
        while len(self.buffer) >= 9:
            kind, number, size = unpack("<BII", self.buffer[:9])
            if len(self.buffer) < 9 + size:
                return
            rest = bytes(self.buffer[9 : 9 + size])
            del self.buffer[: 9 + size]
            self.take(kind, number, rest)

    def take(self, kind, number, rest):
        if kind == START:
            self.start(number, json.loads(rest))
        elif kind == ACKNOWLEDGE:
            if number in self.commands:
                self.commands[number].acknowledge(unpack("<Q", rest)[0])
                self.forget()
        elif kind in (INPUT, END_INPUT):
            command = self.commands.get(number)
            if command is not None and command.input is not None:
                command.input.give(unpack("<Q", rest[:8])[0], rest[8:])
                if kind == END_INPUT:
                    command.input.is_ended = True
                command.input.write(self, number)
        elif kind == PING:
            self.send(PONG, 0)
        elif kind == ENVIRONMENT:
            pairs = [entry.partition(b"=") for entry in rest.split(b"\0")]
            self.environment = {name: value for name, _, value in pairs if name and name not in OF_A_SHELL}
        elif kind == RESUME:
            self.resume(rest)
        elif kind == LEAVE:
            self.leave()

    def start(self, number, request):
        if number in self.seen:
            return  # the client could not know that it had arrived
        self.seen.add(number)
        word = request["word"].encode()
        command = self.commands[number] = Command(number, word, request["limit"])
        environment = dict(self.environment)
        for name, value in request["env"].items():
            environment[name.encode()] = value.encode()
        argv = [argument.encode() for argument in request["argv"]]
        pipes, given, kept = [], None, None
        try:
            os.chdir(request["cwd"].encode())
        except OSError:
            return self.refuse(command, b"cannot find directory")
        try:
            place = find_program(argv[0], environment)
            for _ in range(2):
                pipes += os.pipe()
            if request["input"] is True:
                given, kept = os.pipe()
                pipes.append(kept)
            elif request["input"] is not None:
                given = file_of(a2b_base64(request["input"]))
            pid = spawn(place, argv, environment, pipes[1], pipes[3], given)
        except OSError as error:
            for fd in pipes:
                os.close(fd)
            if error.errno in (ENOENT, ENOTDIR):
                return self.refuse(command, b"cannot find program")
            if error.errno in (EACCES, EPERM):
                return self.refuse(command, b"cannot execute")
            command.put(self, ERR, error.strerror.encode())
            return command.end(self, 126)
        finally:
            os.chdir(b"/")
            if given is not None:
                os.close(given)
        out, far_out, err, far_err = pipes[:4]
        os.close(far_out)
        os.close(far_err)
        command.pid = pid
        command.streams = (Stream(command, OUT, out), Stream(command, ERR, err))
        if kept is not None:
            command.input = Input(kept)
        if word:
            command.put(self, ERR, b"%s started %d %s %d\n" % (word, pid, started(pid), pid))
        command.look(self)

    def refuse(self, command, why):
        if command.word:
            command.put(self, ERR, b"%s %s\n" % (command.word, why))
        command.end(self, 126)


def find_program(name, environment):
    """Returns the place of a program, as `execvp` finds it."""
    if b"/" in name:
        if os.path.isdir(name):
            raise OSError(EACCES, "it is a directory")
        return name
    for folder in environment.get(b"PATH", os.defpath.encode()).split(b":"):
        place = os.path.join(folder or b".", name)
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    raise OSError(ENOENT, "it is nowhere")


def file_of(data):
    """Returns a file in memory with that content, to be read from its beginning."""
    fd = os.memfd_create("input")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def spawn(place, argv, environment, out, err, given):
    no_input = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
    actions = [
        no_input if given is None else (os.POSIX_SPAWN_DUP2, given, 0),
        (os.POSIX_SPAWN_DUP2, out, 1),
        (os.POSIX_SPAWN_DUP2, err, 2),
    ]
    how = {"file_actions": actions, "setsid": True, "setsigmask": (), "setsigdef": HANDLED}
    try:
        return os.posix_spawn(place, argv, environment, **how)
    except OSError as error:
        if error.errno != ENOEXEC:
            raise
    # As a shell does with a script that names no interpreter.
    return os.posix_spawn("/bin/sh", [b"/bin/sh", place, *argv[1:]], environment, **how)


def started(pid):
    """Returns when a process has started, as the kernel has it."""
    with open("/proc/%d/stat" % pid, "rb") as file:
        return file.read().rpartition(b")")[2].split()[19]


def session(pid):
    """Returns the session of a process, or None for one that has ended."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[3])
    except OSError:
        return None


def can_spawn():
    """Returns true where a process can be started in a session of its own."""
    if not hasattr(os, "posix_spawn"):
        return False
    try:
        null, given = os.open("/dev/null", os.O_WRONLY), file_of(b"exit 7")
        _, status = os.waitpid(spawn("/bin/sh", [b"sh"], {}, null, null, given), 0)
        os.close(null)
        os.close(given)
        return os.WEXITSTATUS(status) == 7
    except (AttributeError, OSError, NotImplementedError):
        return False


def main():
    if can_spawn():
        runner = Runner()
        runner.send(READY, 0)
        runner.run()


main()
