"""What the kernel says of the processes of a container."""

from posix import O_CLOEXEC, O_RDONLY
from posix import close, getpid, listdir, open, read


def contents(path):
    """All of a file that the kernel makes up."""
    file = open(path, O_RDONLY | O_CLOEXEC)
    try:
        data = b""
        while True:
            piece = read(file, 65536)
            if not piece:
                return data
            data += piece
    finally:
        close(file)


def kills_for_memory():
    """How often the kernel has ended a process of this container for its memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            words = contents(path).split()
        except OSError:
            continue
        if b"oom_kill" in words:
            return int(words[words.index(b"oom_kill") + 1])
    return 0


def process_count():
    """How many processes and threads the container has."""
    for path in ("/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids/pids.current"):
        try:
            return int(contents(path))
        except OSError:
            continue
    return 0


def own_children():
    pid = getpid()
    try:
        listed = contents("/proc/%d/task/%d/children" % (pid, pid))
    except OSError:
        return [child for child, about in processes().items() if about[0] == pid]
    return [int(word) for word in listed.split()]


def look(pid):
    """Its parent, start in ticks, state and session."""
    try:
        fields = contents("/proc/%d/stat" % pid).rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[19]), fields[0], int(fields[3])


def processes():
    table = {}
    for name in listdir("/proc"):
        if name.isdigit():
            about = look(int(name))
            if about is not None:
                table[int(name)] = about
    return table


def below(root):
    table, found = processes(), [root]
    for pid in found:
        found += [other for other, about in table.items() if about[0] == pid]
    return found[1:]
