"""Double-forks, so that the first process here adopts the child, or without one the process that starts workers.

Code that waits for children does not see the child. There is a process in between for a moment: it is forked, hands all
its memory to a process of its own, and ends. So the memory of a large interpreter is freed and copied once, and not twice.
Where this process has one thread, the process in between is a child that ends without a signal, which only callers see
that ask for such children. Then its end need not be awaited.

A process that adopts orphans would get its copy back as a child. It adopts none from the fork to the end of the process
in between.
"""

import gc
import sys
from _signal import SIG_BLOCK, SIG_SETMASK, SIGCHLD, SIGKILL, pthread_sigmask, valid_signals
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM
from _socket import socketpair
from posix import P_ALL, WEXITED, WNOHANG, WNOWAIT
from posix import _exit, fork, getpid, getppid, kill, listdir, strerror, uname, waitid, waitpid
from time import sleep

from _ctypes import FUNCFLAG_PYTHONAPI, addressof, dlopen, dlsym, get_errno

CLONE_VM = 0x00000100
CLONE_VFORK = 0x00004000
CLONE_CHILD_CLEARTID = 0x00200000
CLONE_CHILD_SETTID = 0x01000000
# A child without a signal at its end.
FORK = CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID
HAND_OVER = FORK | CLONE_VM | CLONE_VFORK | SIGCHLD
PR_GET_CHILD_SUBREAPER = 37
PR_GET_TID_ADDRESS = 40
# Of x86_64. Where the arguments have another order, a second fork does the same.
SYS_CLONE = 56
SYS_SET_TID_ADDRESS = 218
SYS_RSEQ = 334
RSEQ_SIGNATURE = 0x53053053
RSEQ_SIZE = 32
# Seconds to wait for the end of a process in between, twice as long each time.
SHORTEST, WAITS = 50e-6, 10
# Also for children that end without a signal.
WALL = 0x40000000


def leave_copy(threads=None, later=False):
    """Forks. Returns what `begin` and `forget` need, or the reason of a failure, and in the copy neither.

    `threads` are those of this process, where they are known. With `later` the copy waits as a child of this process until
    `begin` is called.
    """
    thread = own_thread()  # found before, so that the copy finds it at once
    ours, theirs = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    quiet = thread is not None and (threads or count_threads()) == 1
    adopts = adopts_orphans()
    try:
        if adopts:
            adopt_orphans(0)
        middle = thread.fork() if quiet else fork()
    except BaseException as error:
        if adopts:
            adopt_orphans(1)
        ours.close()
        theirs.close()
        return None, "it cannot be copied (%s: %s)" % (type(error).__name__, error)
    if middle == 0:
        ours.close()
        ENDING.clear()
        if later and not theirs.recv(1):
            _exit(0)  # its parent is gone
        in_between(theirs)
        return None, None
    theirs.close()
    return (middle, ours, quiet, adopts), None


def adopts_orphans():
    """Returns true when orphans below this process become its children."""
    found = load("worker")["_Long"]()
    try:
        load("worker")["prctl"](PR_GET_CHILD_SUBREAPER, addressof(found))
    except OSError:
        return False
    return found.value & 0xFFFFFFFF != 0


def adopt_orphans(whether):
    load("worker")["prctl"](load("worker")["PR_SET_CHILD_SUBREAPER"], whether)


def count_threads():
    """Counts the threads of this process, with those of libraries; `None`: unknown."""
    try:
        return len(listdir("/proc/self/task"))
    except OSError:
        return None


def begin(middle, ours, quiet, adopts):
    """Lets a copy that was forked for later begin."""
    ours.send(b"b")


def forget(middle, ours, quiet, adopts):
    """Reaps the process in between, unless it stays. Where it is not visible, it is reaped when there is time: see `take`."""
    if quiet and not adopts:
        ours.setblocking(False)
        ENDING[middle] = [ours, 0]
    else:
        wait_for(middle, ours, quiet, adopts)


def wait_for(middle, ours, quiet, adopts):
    """Reaps the process in between at once."""
    try:
        ours.recv(1)  # until both have closed the other end
        ours.close()
        for n in range(WAITS):
            if has_ended(middle):
                return
            sleep(SHORTEST * 2**n)
    finally:
        if adopts:
            adopt_orphans(1)


def take():
    """Reaps processes whose end was not awaited, where they have ended. Returns the seconds after which to check again."""
    again = SHORTEST * 2**WAITS
    for middle, ending in list(ENDING.items()):
        ours, looks = ending
        # One that stays has closed the other end, and is the copy.
        if has_ended(middle) or looks > WAITS:
            del ENDING[middle]
            try:
                ours.close()
            except OSError:
                pass  # code has closed it already
            continue
        again = min(again, SHORTEST * 2**looks)
        # It may take long until its end, and no longer.
        if looks < WAITS // 2 or is_let_go(ours):
            ending[1] += 1
    return again


def is_let_go(ours):
    try:
        ours.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def descriptors():
    """Returns the descriptors of this module, in this process."""
    return [ours.fileno() for ours, _ in ENDING.values()]


def has_children():
    try:
        waitid(P_ALL, 0, WEXITED | WNOHANG | WNOWAIT | WALL)
    except ChildProcessError:
        return False
    return True


def has_ended(middle):
    try:
        return waitpid(middle, WNOHANG | WALL)[0] != 0
    except OSError:
        return True  # code ignores SIGCHLD, and the kernel has taken it


def in_between(theirs):
    """Lets a process without a parent continue with all that this one has, and closes the other end.

    It was reported already that there is a copy. So when there is no room for one more process,
    this one is the copy.
    """
    if hand_over(theirs):
        return
    try:
        last = fork()
    except BaseException:
        last = 0
    if last:
        _exit(0)
    theirs.close()


def hand_over(theirs):
    """Hands all memory to a new process and ends. Returns false when that was not possible.

    The kernel stops this process while the other one has its memory, and so until its end, which the other one causes:
    they never run at the same time.
    """
    thread = own_thread()
    if thread is None:
        return False
    middle = getpid()
    done = thread.clone()
    if done > 0:
        _exit(0)  # it has ended before this process did
    if done < 0:
        return False
    if getppid() == middle:
        kill(middle, SIGKILL)
    theirs.close()  # first, since the other process waits for it
    thread.settle()
    return True


class Thread:
    """What the C library keeps of the only thread of a process, and the kernel writes to."""

    def __init__(self):
        worker = load("worker")
        long, self.call = worker["_Long"], worker["_function"]("syscall", *[worker["_Long"]] * 7)
        found = long()
        worker["prctl"](PR_GET_TID_ADDRESS, addressof(found))
        self.number_at = found.value
        if long.from_address(self.number_at).value & 0xFFFFFFFF != getpid():
            raise LookupError("another C library")
        names = dlopen(None, 0)
        # These keep the interpreter's lock, as code around a fork has to.
        kind = type("Held", (worker["_Function"],), {"_flags_": FUNCFLAG_PYTHONAPI | worker["_Function"]._flags_})
        self.held_call = kind(dlsym(names, "syscall"))
        self.held_call.argtypes = [long] * 7
        self.around = {name: kind(dlsym(names, "PyOS_" + name)) for name in AROUND}
        # What programs see of processors; since version 2.35 of the library.
        self.areas_at = None
        try:
            offset = long.from_address(dlsym(names, "__rseq_offset")).value
            size = long.from_address(dlsym(names, "__rseq_size")).value & 0xFFFFFFFF
        except OSError:
            return
        if size:
            self.areas_at = worker["_function"]("pthread_self")() + offset

    def fork(self):
        """Forks like `os.fork`, but the child ends without a signal, and without the functions of libraries around a fork.

        Those are about their threads, of which there must be none.
        """
        sys.audit("os.fork")
        # In between the interpreter holds locks of its own, so that no handler and no finalizer of user code may run.
        mask, collects = pthread_sigmask(SIG_BLOCK, valid_signals()), gc.isenabled()
        gc.disable()
        try:
            self.around["BeforeFork"]()
            child = self.held_call(SYS_CLONE, FORK, 0, 0, self.number_at, 0, 0)
            failed = get_errno() if child < 0 else 0
            self.around["AfterFork_Parent" if child else "AfterFork_Child"]()
        finally:
            if collects:
                gc.enable()
            pthread_sigmask(SIG_SETMASK, mask)
        if failed:
            raise OSError(failed, strerror(failed))
        return child

    def clone(self):
        # Or the end of this process would take the number of the other one.
        self.call(SYS_SET_TID_ADDRESS, 0, 0, 0, 0, 0, 0)
        done = self.call(SYS_CLONE, HAND_OVER, 0, 0, self.number_at, 0, 0)
        if done < 0:
            self.call(SYS_SET_TID_ADDRESS, self.number_at, 0, 0, 0, 0, 0)
        return done

    def settle(self):
        """Reports to the kernel for a new process what only the first one has reported."""
        if self.areas_at is not None:
            self.call(SYS_RSEQ, self.areas_at, RSEQ_SIZE, 0, RSEQ_SIGNATURE, 0, 0)
        threading = sys.modules.get("threading")
        if threading is not None:
            getattr(threading.main_thread(), "_set_native_id", int)()


def own_thread():
    """Returns the thread of this process and of each copy of it, if it is the only one; `None`: unknown layout."""
    if not KNOWN:
        try:
            KNOWN.append(Thread() if uname().machine == "x86_64" else None)
        except Exception:
            KNOWN.append(None)
    return KNOWN[0]


AROUND = "BeforeFork", "AfterFork_Parent", "AfterFork_Child"
KNOWN = []
# The processes in between whose end was not seen yet: our end of each, and how often it was checked.
ENDING = {}
