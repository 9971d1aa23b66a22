"""Resolves a path to a descriptor. No magic link is followed, and nothing is opened that only shows the kernel."""

import sys
from posix import O_CLOEXEC, O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY
from posix import close, fstat, listdir, makedev, mkdir, open, stat, strerror, urandom
from stat import S_ISDIR, S_ISLNK, S_ISREG

from _ctypes import get_errno

IS_A_LINK, NOT_REGULAR, NOT_A_FILE, TOO_DEEP, TOO_MANY = 100, 101, 102, 103, 104
INSIDE_ITSELF, UNREADABLE, TOO_LARGE, SHORTER = 105, 106, 107, 108
IN_ARCHIVE, OTHER_KIND, LEADS_OUT, WATCHES = 109, 110, 111, 112
ENOENT, EINTR, EAGAIN, ENOTDIR, EISDIR, ENOSYS = 2, 4, 11, 20, 21, 38
SYS_OPENAT2 = 437  # the same number on every architecture
AT_FDCWD = -100
NO_MAGICLINKS, NO_SYMLINKS, BENEATH = 2, 4, 8
MAX_DEPTH = 64
PSEUDO = (
    b"proc sysfs devpts cgroup cgroup2 debugfs tracefs securityfs configfs bpf nsfs fusectl "
    b"binfmt_misc pstore efivarfs selinuxfs"
).split()
KERNEL_DEVICES = set()

worker = load("worker")
Problem = load("requests")["Problem"]
_openat2 = worker["_function"](
    "syscall", worker["_Long"], worker["_Long"], worker["_Pointer"], worker["_Pointer"], worker["_Long"]
)


def resolve(path, flags, root=AT_FDCWD, rules=0):
    flags |= O_CLOEXEC
    how = b"".join(value.to_bytes(8, sys.byteorder) for value in (flags, 0, NO_MAGICLINKS | rules))
    while True:
        fd = _openat2(SYS_OPENAT2, root, path, how, len(how))
        if fd >= 0:
            return fd
        errno = get_errno()
        if errno == ENOSYS and root == AT_FDCWD:
            return open(path, flags)
        if errno not in (EINTR, EAGAIN):
            raise OSError(errno, strerror(errno))


def is_pseudo(status):
    if not KERNEL_DEVICES:
        learn_devices()
    return status.st_dev in KERNEL_DEVICES


def learn_devices():
    KERNEL_DEVICES.add(-1)
    for line in load("processes")["contents"]("/proc/self/mountinfo").splitlines():
        mount, _, kind = line.partition(b" - ")
        if kind.split(b" ")[0] in PSEUDO:
            major, minor = mount.split(b" ")[2].split(b":")
            KERNEL_DEVICES.add(makedev(int(major), int(minor)))


def opened(path, flags):
    """Opens a path unless it shows the kernel."""
    fd = resolve(path, flags)
    if is_pseudo(fstat(fd)):
        close(fd)
        raise Problem(NOT_A_FILE)
    return fd


def open_directory(path):
    return opened(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK)


def open_regular(path, flags):
    """Opens a regular file. Nothing else is opened, not even for a moment."""
    before = opened(path, O_PATH | flags & O_NOFOLLOW)
    try:
        must_be_regular(fstat(before))
    finally:
        close(before)
    fd = opened(path, flags | O_NONBLOCK | O_NOCTTY)
    try:
        must_be_regular(fstat(fd))
    except BaseException:
        close(fd)
        raise
    return fd


def must_be_regular(status):
    if S_ISREG(status.st_mode):
        return
    if S_ISDIR(status.st_mode):
        raise OSError(EISDIR, "")
    raise Problem(IS_A_LINK if S_ISLNK(status.st_mode) else NOT_REGULAR)


class Place:
    """A directory, and the name of an entry in it that may not exist."""

    def __init__(self, path, parents=False):
        stripped = path.rstrip(b"/")
        self.is_directory = len(stripped) < len(path)  # the path ends in a slash
        above, _, self.name = stripped.rpartition(b"/")
        self.parent = None
        try:
            self.parent = opened(above + b"/", O_PATH | O_DIRECTORY)
        except FileNotFoundError:
            if not parents:
                raise
            make_directories(above + b"/")
            self.parent = opened(above + b"/", O_PATH | O_DIRECTORY)

    def status(self):
        return stat(self.name, dir_fd=self.parent, follow_symlinks=False)

    def close(self):
        if self.parent is not None:
            close(self.parent)
            self.parent = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def make_directories(path):
    end = 0
    while end < len(path):
        next = path.find(b"/", end + 1)
        end = len(path) if next < 0 else next
        try:
            close(resolve(path[:end], O_PATH | O_DIRECTORY))
        except FileNotFoundError:
            try:
                mkdir(path[:end], 0o755)
            except FileExistsError:
                pass
            close(resolve(path[:end], O_PATH | O_DIRECTORY))


def temporary_name():
    return b".sandbox-" + urandom(8).hex().encode()


def kind_of(status):
    if S_ISREG(status.st_mode):
        return 0
    if S_ISDIR(status.st_mode):
        return 1
    return 2 if S_ISLNK(status.st_mode) else 3


class Found:
    """An entry that was found on a walk."""

    def __init__(self, name, path, status, depth):
        self.name, self.path, self.status, self.depth = name, path, status, depth
        self.kind = kind_of(status)


class Walk:
    """Walks everything below a directory, sorted, no link followed. Enters a directory when asked to."""

    def __init__(self, directory):
        self.levels = []
        self.push(directory, b"", fstat(directory).st_dev)

    @property
    def directory(self):
        return self.levels[-1][0]

    def push(self, directory, path, device):
        names = [name.encode("utf-8", "surrogateescape") for name in listdir(directory)]
        names.sort(reverse=True)
        self.levels.append((directory, path, device, names))

    def next(self):
        while self.levels:
            directory, path, _, names = self.levels[-1]
            if not names:
                close(directory)
                self.levels.pop()
                continue
            name = names.pop()
            try:
                status = stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            below = path + b"/" + name if path else name
            return Found(name, below, status, len(self.levels) - 1)
        return None

    def enter(self, found):
        """Enters a directory. Returns false when that is not possible."""
        if len(self.levels) > MAX_DEPTH:
            raise Problem(TOO_DEEP)
        device = found.status.st_dev
        if device != self.levels[-1][2] and is_pseudo(found.status):
            return False
        flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
        try:
            directory = open(found.name, flags, dir_fd=self.directory)
        except OSError as error:
            if error.errno in (13, ENOENT, ENOTDIR, 40):
                return False
            raise
        self.push(directory, found.path, device)
        return True

    def close(self):
        for level in self.levels:
            close(level[0])
        self.levels.clear()
