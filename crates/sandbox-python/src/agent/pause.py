"""Pauses and resumes all processes of a container but this one.

They are stopped, and not frozen by the engine, so that this process sees when its host is gone and ends them.
"""

from posix import getpid, kill
from _signal import SIGCONT, SIGSTOP

ROUNDS, POLL_INTERVAL = 5000, 0.001
EAGAIN = 11

kernel = load("processes")
processes, below = kernel["processes"], kernel["below"]
STILL = b"TtZXxD"  # a process that waits for the kernel (D) is stopped when it continues


class Pauser:
    def __init__(self):
        self.before = None  # while they are paused: processes that had been stopped already

    def pause(self):
        if self.before is None:
            self.before = {pid for pid, about in others().items() if about[2] in b"Tt"}
        for _ in range(ROUNDS):
            if all(about[2] in STILL for about in others().values()):
                return
            tell_others(SIGSTOP)
            yield POLL_INTERVAL
        yield from self.resume()
        raise OSError(EAGAIN, "")

    def resume(self):
        before, self.before = self.before, None
        if before is None:
            return
        # A process that waits for another one continues after it, and so never sees it stopped.
        for pid in reversed(oldest_first(others())):
            if pid not in before:
                tell(pid, SIGCONT)
        return
        yield


def others():
    table = processes()
    if getpid() != 1:
        mine = set(below(getpid()))
        return {pid: about for pid, about in table.items() if pid in mine}
    table.pop(1, None)
    return table


def oldest_first(table):
    """Sorts parents before the processes that they have started."""
    return sorted(table, key=lambda pid: (depth(table, pid), pid))


def depth(table, pid):
    steps = 0
    while pid in table and steps < len(table):
        pid, steps = table[pid][0], steps + 1
    return steps


def tell_others(signal):
    if getpid() == 1:
        tell(-1, signal)  # all processes, also those that start now
    else:
        for pid in others():
            tell(pid, signal)


def tell(pid, signal):
    try:
        kill(pid, signal)
    except OSError:
        pass  # it is gone
