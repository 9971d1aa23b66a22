"""Checkpoints of interpreters that wait in a container, and are restored as interpreters.

A copy reports over a socket, and the kernel adds the id of the sending process. That process has been left to this
one by then, as an orphan. From there on it is a process like one that was started here: apart from the tree that it
came from, with an end that is reported, and killed with its key. Code can have another process of this container
report instead, and nothing else.
"""

import sys
from posix import close, getpid
from select import EPOLLIN

from _socket import AF_UNIX, CMSG_SPACE, SCM_CREDENTIALS, SO_PASSCRED, SOCK_STREAM, SOL_SOCKET
from _socket import socketpair

ARRIVED = b"a"
EXPORT_VARIABLES, PREPARE, RESTORE = b"s", b"p", b"w"
NO_COPY = b"c"  # the stage at which no copy arrived
CREDENTIALS = 12
ROUNDS, POLL_INTERVAL = 5000, 0.001  # how often to check whether the copy has been left to this process
ENOENT, ESRCH = 2, 3

codec, pipes, kernel = load("codec"), load("pipes"), load("processes")
as_number = codec["as_number"]


class Coming:
    """A copy that is to report."""

    def __init__(self, checkpoints, key):
        self.checkpoints, self.key = checkpoints, key
        self.agent = checkpoints.children.agent
        self.socket, theirs = socketpair(AF_UNIX, SOCK_STREAM)
        self.theirs = theirs.detach()
        self.socket.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        self.socket.setblocking(False)
        self.agent.watch(self.socket.fileno(), EPOLLIN, self.said)
        checkpoints.coming[key] = self

    def said(self, events):
        self.agent.unwatch(self.socket.fileno())
        try:
            data, ancillary, _, _ = self.socket.recvmsg(1, CMSG_SPACE(CREDENTIALS))
        except OSError:
            data, ancillary = b"", ()
        senders = [
            int.from_bytes(content[:4], sys.byteorder)
            for level, kind, content in ancillary
            if (level, kind) == (SOL_SOCKET, SCM_CREDENTIALS)
        ]
        if data == ARRIVED and senders:
            self.take_in(senders[0], ROUNDS)
        else:
            self.give_up()

    def take_in(self, pid, rounds):
        """Takes over the copy once it is a child of this process: until it is reaped here, no other process can have its id."""
        if self.checkpoints.coming.get(self.key) is not self:
            return
        owners, about = self.checkpoints.children.owners, kernel["look"](pid)
        owner = owners.get(pid)
        if about is None or about[2] in b"ZXx" or rounds == 0 or owner is not None and owner.pid == pid:
            self.give_up()
        elif about[0] != getpid():
            self.agent.requests.later(POLL_INTERVAL, lambda: self.take_in(pid, rounds - 1))
        else:
            del self.checkpoints.coming[self.key]
            self.checkpoints.children.add(self.key, pid, True).copy = self.socket

    def give_up(self):
        if self.checkpoints.drop(self.key):
            self.checkpoints.children.not_started(self.key, NO_COPY, ESRCH)


class Checkpoints:
    def __init__(self, children):
        self.children = children
        self.coming = {}  # by key

    def expect(self, key):
        """Returns the socket on which a copy will report."""
        return Coming(self, key).theirs

    def drop(self, key):
        """Stops waiting for a copy. Returns true when it was awaited."""
        coming = self.coming.pop(key, None)
        if coming is not None:
            self.children.agent.unwatch(coming.socket.fileno())
            coming.socket.close()
        return coming is not None

    def waiting(self, key):
        child = self.children.all.get(key)
        if child is None or child.copy is None or child.status is not None:
            raise OSError(ENOENT, "")
        return child

    # Requests of the host.

    def prepare(self, key, following):
        """Has a checkpoint prepare its successor, which will have that key."""
        copy = self.waiting(key).copy
        theirs = self.expect(as_number(following))
        try:
            tell(copy, PREPARE, [theirs])
        finally:
            close(theirs)

    def restore(self, key):
        """Makes a checkpoint an interpreter."""
        child = self.waiting(key)
        streams = self.children.new_streams()
        try:
            tell(child.copy, RESTORE, streams.theirs)
        except OSError:
            streams.close_ours()
            raise
        finally:
            streams.close_theirs()
        child.copy.close()
        child.copy = None
        child.connect(streams)

    def export_variables(self, key, stream):
        """Has one more copy export its variables on that stream."""
        copy = self.waiting(key).copy
        theirs, ours = socketpair(AF_UNIX, SOCK_STREAM)
        theirs = theirs.detach()
        try:
            tell(copy, EXPORT_VARIABLES, [theirs])
        finally:
            close(theirs)
        pipes["SocketSink"].both_ways(self.children.agent, ours, as_number(stream))


def tell(copy, what, files):
    data = b"".join(file.to_bytes(4, sys.byteorder) for file in files)
    copy.sendmsg([what], [(SOL_SOCKET, 1, data)])
