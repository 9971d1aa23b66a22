"""Checkpoints of the interpreter: copies that wait, for snapshots.

A copy is a fork of the worker between two requests. Only the cell's first process is its parent, so that code
which waits for children does not see it, and it releases every stream of the worker. When it is restored it
leaves one more copy of itself and is the worker from there on. Before that it can export its variables, by one
more copy.
"""

import sys
from _signal import SIG_IGN, SIGINT
from _signal import signal as set_signal
from _socket import AF_UNIX, CMSG_SPACE, MSG_CMSG_CLOEXEC, SOCK_STREAM, socket
from _thread import _count as python_threads
from posix import O_CLOEXEC, O_RDONLY, O_RDWR
from posix import _exit, chdir, close, dup2, getcwd, getpid, listdir, open, read, readlink, setsid
from time import sleep

READY = 16
CONTROL = 100
ARRIVED = b"a"
EXPORT_VARIABLES, PREPARE, RESTORE = b"s", b"p", b"w"
FILES_SPACE = CMSG_SPACE(4 * 4)
MAX_NOTES = 8
SETTLING = 50  # milliseconds in which threads of ours may end

codec, double_fork = load("codec"), load("double_fork")
text, number, frame = codec["text"], codec["number"], codec["frame"]


def hold(driver, fields):
    """Answers a request for a checkpoint. Returns in the copy as well, once that is the worker."""
    channel = driver.files.pop(0)
    driver.streams.flush()
    problem = obstacle()
    left = None
    if problem is None:
        threads = double_fork["count_threads"]()
        # Made before: what this process writes to after a fork is copied first, page by page.
        answer = codec["acknowledged"](fields[0], "", shared(driver, channel, threads))
        left, problem = double_fork["leave_copy"](threads)
        if left is None and problem is None:
            return wait(driver, channel)
    driver.send(codec["acknowledged"](fields[0], problem) if problem else answer)
    close(channel)
    if left:
        double_fork["forget"](*left)


def wait(driver, channel):
    """Waits as a copy. Returns when it is restored."""
    setsid()
    set_signal(SIGINT, SIG_IGN)
    directory = where()
    let_go(driver)
    while True:
        files, channel, left = attend(driver, channel)
        if left:
            become(driver, files, directory)
            middle, ours, quiet, adopts = left
            # The next copy must have been left to the first process by then.
            double_fork["forget"](middle, ours, quiet, adopts or driver.request.subreaper)
            return


def attend(driver, channel):
    """Reports that the copy is there and follows commands until it is restored. Returns the streams of the worker.

    Returns in the next copy as well, with the channel of that one, which starts again.
    """
    peer = socket(AF_UNIX, SOCK_STREAM, 0, channel)
    peer.send(ARRIVED)
    following = left = None
    while True:
        data, ancillary, _, _ = peer.recvmsg(1, FILES_SPACE, MSG_CMSG_CLOEXEC)
        files = codec["received_files"](ancillary)
        if data == EXPORT_VARIABLES:
            load("variable_export")["store_from_copy"](driver, *files)
            continue
        if data == PREPARE:
            following = files.pop()
        elif data != RESTORE:
            _exit(0)  # it cannot be restored any more
        # When there was no room for the next copy at first, there may be now.
        if left is None:
            left, problem = double_fork["leave_copy"](later=True)
            if left is None and problem is None:
                peer.close()
                setsid()
                for file in files:
                    close(file)
                return None, following, None
        if data == RESTORE:
            if left is None:
                _exit(1)
            double_fork["begin"](*left)
            close(following)
            peer.close()
            return files, None, left


def where():
    try:
        return getcwd()
    except OSError:
        return None


def let_go(driver):
    """Releases the streams of the worker."""
    driver.socket.close()
    driver.streams.abandon()
    null = open("/dev/null", O_RDWR | O_CLOEXEC)
    for standard in range(3):
        dup2(null, standard)
    close(null)


def become(driver, files, directory):
    worker = load("worker")
    for file, place in zip(files, (CONTROL, 0, 1, 2)):
        dup2(file, place, place < 3)
        close(file)
    driver.buffer, driver.files = b"", []
    driver.pid = getpid()
    driver.socket = socket(AF_UNIX, SOCK_STREAM, 0, CONTROL)
    driver.streams.adopt()
    for place in (directory, driver.work_dir, "/"):
        try:
            chdir(place)
            break
        except (OSError, TypeError):
            pass  # the files are those of the snapshot, so it is hardly ever gone
    set_signal(SIGINT, driver.on_interrupt)
    worker["_reseed"]()
    checked = worker["_self_check"](driver.request)
    version = "%d.%d.%d" % sys.version_info[:3]
    driver.send(frame(READY, number(1), number(driver.pid), text(version), text(checked)))


# What a copy cannot have.


def obstacle():
    """Returns why there can be no copy: threads do not survive a fork, and what they hold stays locked."""
    for _ in range(SETTLING):
        if python_threads() == 0:
            return None
        sleep(0.001)
    threading = sys.modules.get("threading")
    names = []
    if threading is not None:
        main = threading.main_thread()
        names = [thread.name for thread in threading.enumerate() if thread is not main]
    named = ", ".join(names[:MAX_NOTES]) or "started without a name"
    return "%d threads run in it (%s)" % (python_threads(), named[:200])


def shared(driver, channel, threads):
    """Returns notes about what the copy lacks, or shares."""
    notes = []
    if threads is None:
        notes.append("perhaps threads of libraries; they cannot be counted here")
    elif threads > 1:
        notes.append("%d threads of libraries; those that can will start theirs again" % (threads - 1))
    for pid in children():
        if pid in double_fork["ENDING"]:
            continue
        notes.append("process %d (%s), which it started" % (pid, name_of(pid)))
    own = {0, 1, 2, CONTROL, channel, *driver.streams.spares, *loop_files(driver.cells.loop), *double_fork["descriptors"]()}
    for file in sorted(others(own)):
        note = descriptor(file)
        if note:
            notes.append(note)
    if len(notes) > MAX_NOTES:
        more = len(notes) - MAX_NOTES
        notes = notes[:MAX_NOTES] + ["%d more processes and open files" % more]
    return notes


def children():
    if not double_fork["has_children"]():
        return []
    try:
        file = open("/proc/self/task/%d/children" % getpid(), O_RDONLY | O_CLOEXEC)
    except OSError:
        return []  # this kernel does not list them
    listed = read(file, 65536)
    close(file)
    return [int(word) for word in listed.split()]


def name_of(pid):
    try:
        file = open("/proc/%d/comm" % pid, O_RDONLY | O_CLOEXEC)
    except OSError:
        return "dead"
    name = read(file, 64)
    close(file)
    return str(name, "utf-8", "replace").strip()


def others(own):
    """Returns the open descriptors that are not among those."""
    return {int(name) for name in listdir("/proc/self/fd")} - own


def loop_files(loop):
    """Returns the descriptors of the event loop that cells share, if there is one. It does not run, and works in a copy."""
    try:
        return (loop._ssock.fileno(), loop._csock.fileno(), loop._selector.fileno())
    except Exception:
        return ()


def descriptor(number):
    try:
        target = readlink("/proc/self/fd/%d" % number)
    except OSError:
        return None  # it was that of the listing
    if target.startswith("/"):
        if target.startswith("/dev/") or target == "/proc/self/fd":
            return None
        return "open file %s: a copy shares it as it was" % target[:200]
    if target.startswith(("socket:", "pipe:")):
        return "descriptor %d, the end of a %s" % (number, target.partition(":")[0])
    return None
