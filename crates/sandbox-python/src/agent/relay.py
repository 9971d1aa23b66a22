"""The command line of a resident agent: connects the streams of this program to it, and starts it where there is none.

The agent belongs to the sandbox and outlives this program, which only copies bytes. It listens on a
socket in a directory that no other user may enter, and takes a client that knows its token.
"""

import marshal
import sys
from posix import O_CLOEXEC, O_CREAT, O_RDWR
from posix import _exit, close, dup2, environ, fork, geteuid, lstat, mkdir, open, read, set_blocking, setsid
from posix import umask, unlink, waitpid, write
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll
from stat import S_ISDIR
from time import monotonic

from _socket import AF_UNIX, SOCK_STREAM, socket
from fcntl import LOCK_EX, flock

LEASE = 30.0  # seconds without any byte of the host after which it counts as gone
CHUNK = 256 << 10
REFUSED = 4
DIRECTORY = "%s/.code-sandboxes-%d" % (environ.get(b"TMPDIR", b"/tmp").decode(), geteuid())
SOCKET = DIRECTORY + "/agent"


def refuse(why):
    write(2, (why + "\n").encode())
    _exit(REFUSED)


def take(count):
    data = b""
    while len(data) < count:
        piece = read(0, count - len(data))
        if not piece:
            _exit(0)
        data += piece
    return data


def line_of(source):
    line = b""
    while not line.endswith(b"\n"):
        piece = source(1)
        if not piece:
            _exit(0)
        line += piece
    return line[:-1].decode()


def write_all(data):
    data = memoryview(data)
    while data:
        data = data[write(1, data) :]


def make_directory():
    try:
        mkdir(DIRECTORY, 0o700)
    except FileExistsError:
        pass
    about = lstat(DIRECTORY)
    if not S_ISDIR(about.st_mode) or about.st_uid != geteuid() or about.st_mode & 0o077:
        refuse("%s is not a directory of this user alone" % DIRECTORY)


def connect():
    there = socket(AF_UNIX, SOCK_STREAM)
    try:
        there.connect(SOCKET)
    except (FileNotFoundError, ConnectionRefusedError):
        there.close()
        return None
    return there


def start(lock, version, nonce, token, open_files):
    """Takes the agent from standard input, and starts it as a daemon."""
    ready_made = take(1) == b"\1"
    program = take(int.from_bytes(take(4), "little"))
    if not ready_made:
        program = compile(program, "<sandbox importlib._bootstrap agent>", "exec")
    try:
        unlink(SOCKET)  # of an agent that has ended
    except FileNotFoundError:
        pass
    listener = socket(AF_UNIX, SOCK_STREAM)
    mask = umask(0o177)
    listener.bind(SOCKET)
    umask(mask)
    listener.listen(8)
    pid = fork()
    if pid == 0:
        setsid()
        if fork():
            _exit(0)
        close(lock)
        null = open("/dev/null", O_RDWR | O_CLOEXEC)
        for fd in (0, 1, 2):
            dup2(null, fd)
        close(null)
        names = {"__name__": "<sandbox agent>", "NONCE": nonce, "OPEN_FILES": open_files}
        names["RESIDENT"] = listener, version, token
        try:
            exec(marshal.loads(program) if ready_made else program, names)
        finally:
            _exit(1)
    waitpid(pid, 0)
    listener.close()


def relay(there):
    """Copies in both directions until one side ends, or the host is silent. Neither direction waits for the other."""
    end = there.fileno()
    for fd in (0, 1, end):
        set_blocking(fd, False)
    waiting = {1: b"", end: b""}  # bytes that are still to be written
    into = {0: end, end: 1}
    heard = monotonic()
    while monotonic() - heard < LEASE:
        ready = poll()
        for source, sink in into.items():
            if not waiting[sink]:
                ready.register(source, POLLIN)
        for sink in waiting:
            if waiting[sink]:
                ready.register(sink, POLLOUT | (POLLIN if sink == end and not waiting[1] else 0))
        for fd, events in ready.poll(1000):
            if events & (POLLIN | POLLHUP | POLLERR) and fd in into:
                data = read(fd, CHUNK) if not waiting[into[fd]] else None
                if data == b"":
                    return
                if data:
                    waiting[into[fd]] = data
                    if fd == 0:
                        heard = monotonic()
        for sink, data in waiting.items():
            if data:
                try:
                    waiting[sink] = data[write(sink, data) :]
                except BlockingIOError:
                    pass


def main():
    nonce, open_files, version = sys.argv[1:4]
    open_files = tuple(map(int, open_files.split(":")))
    make_directory()
    # One agent, however many programs like this one start at a time.
    lock = open(DIRECTORY + "/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    flock(lock, LOCK_EX)
    there = connect()
    state = "new" if there is None else "running"
    magic = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
    write_all(("code-sandboxes-relay 1 %s %s %s\n" % (nonce, state, magic.hex())).encode())
    token = line_of(lambda count: read(0, count))
    if there is None:
        start(lock, version, nonce, token, open_files)
        there = connect()
        if there is None:
            refuse("the agent has ended at once")
    close(lock)
    there.sendall(("%s %s %s\n" % (version, nonce, token)).encode())
    answer = line_of(there.recv)
    if answer != "taken":
        refuse(answer)
    relay(there)


try:
    main()
except (BrokenPipeError, ConnectionResetError):
    pass
_exit(0)
