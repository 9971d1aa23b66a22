"""The processes of a container and what they use, as the kernel shows them."""

from posix import O_CLOEXEC, O_RDONLY
from posix import close, getpid, listdir, open, pread, read, statvfs, sysconf

GROUP = "/sys/fs/cgroup/"
COUNTER = []
MICROSECONDS_OF_A_TICK = 10_000  # of the kernel's clock for processes, everywhere
SHARED_MEMORY = b"/dev/shm"
NOT_FILES = (b"/dev", b"/proc", b"/sys")  # mounts below these are no disk of a process


def contents(path):
    """Returns all of a file that the kernel makes up."""
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
    """Returns how often the kernel has killed a process of this container for memory. Called often, so the file stays open."""
    if not COUNTER:
        COUNTER.append(None)
        for place in ("memory.events", "memory/memory.oom_control"):
            try:
                COUNTER[0] = open(GROUP + place, O_RDONLY | O_CLOEXEC)
                break
            except OSError:
                pass
    if COUNTER[0] is None:
        return 0
    words = pread(COUNTER[0], 4096, 0).split()
    return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0


def process_count():
    """Returns the number of processes and threads of the container."""
    return counted(("pids.current", None), ("pids/pids.current", None))


def counted(*places):
    """Returns a figure of the control group, from the first place that has it: a file, or a line of it by its name."""
    for path, name in places:
        try:
            words = contents(GROUP + path).split()
        except OSError:
            continue
        if name is None:
            return int(words[0])
        if name in words:
            return int(words[words.index(name) + 1])
    return 0


def usage():
    """Returns CPU time in microseconds, bytes of memory, bytes of files in memory, and the number of processes."""
    count = process_count()
    if not count:
        return usage_of_processes()
    cpu = counted(("cpu.stat", b"usage_usec")) or counted(("cpuacct/cpuacct.usage", None)) // 1000
    memory = counted(("memory.current", None), ("memory/memory.usage_in_bytes", None))
    # The kernel takes that back when it needs it.
    spare = counted(("memory.stat", b"inactive_file"), ("memory/memory.stat", b"total_inactive_file"))
    return cpu, max(memory - spare, 0), bytes_of_files(), count


def usage_of_processes():
    """Adds up what the processes themselves show, where there is no control group. Shared memory counts for each."""
    ticks = pages = count = 0
    for name in listdir("/proc"):
        if name.isdigit():
            try:
                fields = contents("/proc/%s/stat" % name).rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            # In user mode and in the kernel, of its own and of children that it has waited for.
            ticks += sum(map(int, fields[11:15]))
            count += int(fields[17])
            pages += int(fields[21])
    return ticks * MICROSECONDS_OF_A_TICK, pages * sysconf("SC_PAGE_SIZE"), bytes_of_files(), count


def bytes_of_files():
    total = 0
    for line in contents("/proc/self/mounts").splitlines():
        _, place, kind, options = line.split()[:4]
        is_disk = place == SHARED_MEMORY or not place.startswith(NOT_FILES)
        if kind == b"tmpfs" and options.startswith(b"rw") and is_disk:
            try:
                room = statvfs(place.replace(b"\\040", b" "))
            except OSError:
                continue
            total += (room.f_blocks - room.f_bfree) * room.f_frsize
    return total


def own_children():
    pid = getpid()
    try:
        listed = contents("/proc/%d/task/%d/children" % (pid, pid))
    except OSError:
        return [child for child, about in processes().items() if about[0] == pid]
    return [int(word) for word in listed.split()]


def look(pid):
    """Returns parent, start in ticks, state, session and flags of a process."""
    try:
        fields = contents("/proc/%d/stat" % pid).rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0]
    if state == b"Z" and int(fields[17]) > 1:
        state = state_of_threads(pid)
    return int(fields[1]), int(fields[19]), state, int(fields[3]), int(fields[6])


def state_of_threads(pid):
    """Returns the state of a process whose first thread has ended: that of a thread which is not stopped, if there is one."""
    states = set()
    try:
        threads = listdir("/proc/%d/task" % pid)
    except OSError:
        threads = []
    for thread in threads:
        try:
            stat = contents("/proc/%d/task/%s/stat" % (pid, thread))
        except OSError:
            continue  # it has ended meanwhile
        states.add(stat.rpartition(b")")[2].split()[0])
    states -= {b"Z", b"X"}
    running = states - {b"T", b"t"}
    return max(running or states or {b"S"})


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
