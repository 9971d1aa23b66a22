"""Runs commands for one client over a terminal: frames in both directions, many commands at once.

A frame is its kind (1 byte), the number of a command (4 bytes), the length of the rest (4 bytes), all
little-endian, and the rest. The output of a command is read as long as the client has room for it. A
command whose request has a word reports its start and its exit in its output, as the commands of other
ways do. When the client is gone, the output of what still runs is read and dropped.
"""

import json
import os
import signal
import sys
from errno import EACCES, ENOENT, ENOEXEC, ENOTDIR, EPERM
from fcntl import ioctl
from select import POLLIN, POLLOUT, poll
from struct import pack, unpack
from termios import FIONREAD
from time import monotonic

START, ACKNOWLEDGE, PING, LEAVE, ENVIRONMENT = range(1, 6)
OUT, ERR, END, PONG = range(1, 5)
# Bytes of the output of one command that are on their way to the client.
WINDOW = 1 << 20
CHUNK = 64 << 10
# Bytes that wait to be written to the terminal; from then on no output is read.
MAX_WAITING = 256 << 10
# Seconds without a frame after which the client is gone.
LEASE = 60.0
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
        size = min(CHUNK, self.command.window)
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
        self.command.window -= len(data)
        runner.send(self.kind, self.command.number, data)
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
            runner.send(self.kind, command.number, b"%s exited %d\n" % (command.word, command.status))
        command.unreported -= 1
        if command.unreported == 0:
            # Until now the number of the process was that of no other one.
            os.waitpid(command.pid, 0)
        command.finish(runner)


class Command:
    def __init__(self, number, word, pid, out, err):
        self.number, self.word, self.pid = number, word, pid
        self.window = WINDOW
        self.status = None
        self.unreported = 2
        self.streams = (Stream(self, OUT, out), Stream(self, ERR, err))

    def look(self, runner):
        """Looks whether the command has ended."""
        if self.status is not None:
            return
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return
        self.status = found.si_status + (0 if found.si_code == os.CLD_EXITED else 128)
        for stream in self.streams:
            stream.ended(runner)

    def finish(self, runner):
        if self.unreported == 0 and all(stream.fd is None for stream in self.streams):
            runner.end(self.number, self.status)


class Runner:
    def __init__(self):
        self.commands = {}
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

    def end(self, number, status):
        if self.commands.pop(number, None) is not None:
            self.send(END, number, pack("<i", status))

    def leave(self):
        """The client is gone: what still runs has all the room."""
        self.has_client = False
        self.waiting.clear()
        for command in self.commands.values():
            command.window = sys.maxsize

    def run(self):
        while self.has_client or self.commands:
            waits = poll()
            waits.register(self.deaths, POLLIN)
            if self.has_client:
                waits.register(0, POLLIN)
                if self.waiting:
                    waits.register(1, POLLOUT)
            streams = {}
            if len(self.waiting) < MAX_WAITING:
                for command in self.commands.values():
                    for stream in command.streams:
                        if stream.fd is not None and command.window > 0:
                            streams[stream.fd] = stream
                            waits.register(stream.fd, POLLIN)
            for fd, _ in waits.poll(5000):
                if fd in streams:
                    streams[fd].read(self)
                elif fd == 0:
                    self.receive()
                elif fd == self.deaths:
                    self.count_deaths()
            self.flush()
            if self.has_client and monotonic() - self.heard > LEASE:
                self.receive()  # this process may have been paused
                if monotonic() - self.heard > LEASE:
                    self.leave()

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
                self.commands[number].window += unpack("<I", rest)[0]
        elif kind == PING:
            self.send(PONG, 0)
        elif kind == ENVIRONMENT:
            pairs = [entry.partition(b"=") for entry in rest.split(b"\0")]
            self.environment = {name: value for name, _, value in pairs if name and name not in OF_A_SHELL}
        elif kind == LEAVE:
            self.leave()

    def start(self, number, request):
        word = request["word"].encode()
        environment = dict(self.environment)
        for name, value in request["env"].items():
            environment[name.encode()] = value.encode()
        argv = [argument.encode() for argument in request["argv"]]
        pipes = []
        try:
            os.chdir(request["cwd"].encode())
        except OSError:
            return self.refuse(number, word, b"cannot find directory")
        try:
            place = find_program(argv[0], environment)
            for _ in range(2):
                pipes += os.pipe()
            pid = spawn(place, argv, environment, pipes[1], pipes[3])
        except OSError as error:
            for fd in pipes:
                os.close(fd)
            if error.errno in (ENOENT, ENOTDIR):
                return self.refuse(number, word, b"cannot find program")
            if error.errno in (EACCES, EPERM):
                return self.refuse(number, word, b"cannot execute")
            self.send(ERR, number, error.strerror.encode())
            return self.send(END, number, pack("<i", 126))
        finally:
            os.chdir(b"/")
        out, far_out, err, far_err = pipes
        os.close(far_out)
        os.close(far_err)
        command = self.commands[number] = Command(number, word, pid, out, err)
        if word:
            self.send(ERR, number, b"%s started %d %s %d\n" % (word, pid, started(pid), pid))
        command.look(self)

    def refuse(self, number, word, why):
        if word:
            self.send(ERR, number, b"%s %s\n" % (word, why))
        self.send(END, number, pack("<i", 126))


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


def spawn(place, argv, environment, out, err):
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
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


def check(word):
    """Writes every byte, and reads every byte. Returns true when they have come as they were sent."""
    every = bytes(range(256))
    ready = b"%s ready\n" % word + every
    while ready:
        ready = ready[os.write(1, ready) :]
    heard = b""
    while len(heard) < len(every):
        piece = os.read(0, len(every) - len(heard))
        if not piece:
            return False
        heard += piece
    return heard == every


def can_spawn():
    """Returns true where a process can be started in a session of its own."""
    if sys.version_info < (3, 9) or not hasattr(os, "posix_spawn"):
        return False
    try:
        null = os.open("/dev/null", os.O_WRONLY)
        os.waitpid(spawn("/bin/sh", [b"sh", b"-c", b":"], {}, null, null), 0)
        os.close(null)
    except (OSError, NotImplementedError):
        return False
    return True


def main():
    word = sys.argv[1].encode()
    if not can_spawn():
        os.write(1, b"%s lacking Python 3.9\n" % word)
        return
    is_clean = check(word)
    os.write(1, b"%s %s\n" % (word, b"clean" if is_clean else b"unclean"))
    if is_clean:
        Runner().run()


main()
