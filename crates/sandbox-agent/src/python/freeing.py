"""What large files take is given back beside other work.

To free a gigabyte of memory takes more than a tenth of a second, of whoever lets go of the file last. That is a process of its
own here, which does nothing else.
"""

from posix import O_CLOEXEC, O_NOFOLLOW, O_PATH
from posix import _exit, close, fork, fstat, open, pipe2, read, rename, stat, unlink
from stat import S_ISREG

LARGE = 16 << 20  # bytes, which take two milliseconds
MOST = 64  # files of one process
ROUNDS, PAUSE = 5000, 0.001


def unlinked(job, name, directory):
    """Removes a file, and is done when what it took is free."""
    former = Former(job)
    try:
        former.unlink(name, directory)
    finally:
        yield from former.gone()


def renamed(job, name, directory, there):
    """Moves something to a place where something else may be, and is done when what that took is free."""
    former = Former(job)
    try:
        former.rename(name, directory, there.name, there.parent)
    finally:
        yield from former.gone()


class Former:
    """Large files from before they lose their only name until `let_go` or `gone`, one of which has to follow.

    Those beyond `MOST` are freed at once, here.
    """

    def __init__(self, job):
        self.owners, self.files = job.mux.children.owners, []

    def unlink(self, name, directory):
        self.hold(name, directory)
        unlink(name, dir_fd=directory)

    def rename(self, name, directory, new, there):
        self.hold(new, there)
        rename(name, new, src_dir_fd=directory, dst_dir_fd=there)

    def hold(self, name, directory):
        try:
            status = stat(name, dir_fd=directory, follow_symlinks=False)
            is_last = S_ISREG(status.st_mode) and status.st_nlink == 1
            if is_last and status.st_blocks * 512 >= LARGE and len(self.files) < MOST:
                self.files.append(open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=directory))
        except OSError:
            pass  # what is wrong with it shows when it is removed

    def let_go(self):
        """Closes them. The process that does it last, if there has to be one."""
        files, self.files = self.files, []
        pid, ends = None, ()
        # One may have kept its name, or have another.
        if any(fstat(file).st_nlink == 0 for file in files):
            try:
                ends = near, far = pipe2(O_CLOEXEC)
                pid = fork()
            except OSError:
                pass  # there is no room for one more
        if pid == 0:
            close_last((near, *files))
        if pid is not None:
            self.owners[pid] = None  # nobody has asked for it
        for each in (*files, *ends):
            close(each)
        return pid

    def gone(self):
        """Closes them, and is done when what they took is free."""
        pid = self.let_go()
        for _ in range(ROUNDS):
            if pid is None or self.owners.get(pid, self.owners) is not None:
                return
            yield PAUSE


def close_last(files):
    """In the new process, which has nothing else of the agent's: its end closes them, once nobody else has them."""
    try:
        worker, first = load("worker"), 0
        for file in sorted(files):
            if first < file:
                worker["_close_range"](first, file - 1)
            first = file + 1
        worker["_close_range"](first, worker["MOST_FILES"])
        load("children")["stand_back"]()
        read(files[0], 1)
    finally:
        _exit(0)
