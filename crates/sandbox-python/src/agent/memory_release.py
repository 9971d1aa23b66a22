"""Frees the memory of large files beside other work.

Freeing a gigabyte of memory takes more than a tenth of a second, in the process that closes the file last. That is a
process of its own here, which does nothing else.
"""

from posix import O_CLOEXEC, O_NOFOLLOW, O_PATH
from posix import _exit, close, dup2, fork, fstat, open, pipe2, read, rename, stat, unlink
from stat import S_ISREG

LARGE = 16 << 20  # bytes, which take two milliseconds
ROUNDS, POLL_INTERVAL = 5000, 0.001


def unlinked(request, name, directory):
    """Removes a file."""
    former = held(name, directory)
    try:
        unlink(name, dir_fd=directory)
    finally:
        yield from let_go(request, former)


def renamed(request, name, directory, there):
    """Moves something to a path where something else may be."""
    former = held(there.name, there.parent)
    try:
        rename(name, there.name, src_dir_fd=directory, dst_dir_fd=there.parent)
    finally:
        yield from let_go(request, former)


def held(name, directory):
    """Opens a large file with a single name, before that name is removed. `None` for anything else."""
    try:
        status = stat(name, dir_fd=directory, follow_symlinks=False)
        if S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_blocks * 512 >= LARGE:
            return open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=directory)
    except OSError:
        pass  # the problem shows when it is removed
    return None


def let_go(request, file):
    """Closes what `held` returned, and ends when its memory is free."""
    if file is None:
        return
    if fstat(file).st_nlink:
        close(file)  # it kept its name, or has another
        return
    owners, pid = request.agent.children.owners, None
    ends = ()
    try:
        ends = near, far = pipe2(O_CLOEXEC)
        pid = fork()
    except OSError:
        pass  # there is no room for one more
    if pid == 0:
        close_last(file, near)
    if pid is not None:
        owners[pid] = None  # it was not started by the host
    for each in (file, *ends):
        close(each)
    for _ in range(ROUNDS):
        if pid is None or owners.get(pid, owners) is not None:
            return
        yield POLL_INTERVAL


def close_last(file, near):
    """Ends, in the new process, which closes the file last. The process has nothing else of the agent."""
    try:
        dup2(near, 0)
        dup2(file, 1)
        worker = load("worker")
        worker["_close_range"](2, worker["MAX_FILES"])
        load("children")["stand_back"]()
        read(0, 1)
    finally:
        _exit(0)
