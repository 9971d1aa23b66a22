"""Copies between descriptors and streams of the connection."""

import sys
from collections import deque
from posix import O_CLOEXEC, O_NONBLOCK, O_RDONLY
from posix import close, dup, open, pipe2, read, set_blocking, write
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT

from _socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socketpair
from fcntl import ioctl
from termios import FIONREAD

DATA, END, CREDIT, BROKEN = 3, 4, 5, 22
WINDOW = 1 << 20
# Reserved for what has to come before something else, such as before the end of a process.
RESERVE = 128 << 10
CHUNK = 64 << 10
HEAD = 17  # bytes of the length, the kind and the id of a request to a worker
LATE = (4, 5)  # an interrupt and an answer of a tool: about another request
DYING = 1.0  # how long a worker may take to die after it has closed its control stream

codec = load("codec")
number = codec["number"]


def available(fd):
    """Returns the number of bytes that can be read now."""
    return int.from_bytes(ioctl(fd, FIONREAD, bytes(4)), sys.byteorder)


class Source:
    """Sends what is read from a descriptor to the host."""

    def __init__(self, agent, fd, stream, terminal=False):
        self.agent, self.fd, self.stream = agent, fd, stream
        self.terminal = terminal
        self.credit = WINDOW
        self.watched = False
        self.has_ended = False
        self.owed = None  # bytes that were there when they were asked for and are not sent yet
        self.dependents = []
        set_blocking(fd, False)
        agent.streams[stream] = self
        self.resume()

    def resume(self):
        if not self.watched and self.fd is not None and not self.has_ended:
            self.watched = True
            self.agent.watch(self.fd, EPOLLIN, self.ready)

    def pause(self):
        if self.watched:
            self.watched = False
            self.agent.unwatch(self.fd)

    def ready(self, events):
        if not self.agent.has_room():
            self.pause()
            self.agent.park(self)
        elif self.credit <= RESERVE:
            self.pause()
        else:
            self.take(min(CHUNK, self.credit - RESERVE))

    def take(self, most):
        """Reads once; returns the number of bytes."""
        try:
            data = read(self.fd, most)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""  # a terminal that no process has open any more
        if data:
            self.credit -= len(data)
            if self.owed is not None:
                self.owed -= len(data)
            self.agent.data(self.stream, data)
        else:
            self.end()
        return len(data)

    def drain(self):
        """Sends all that was there when this was first called. Returns false when there was no room, to be called again."""
        if self.fd is not None and self.owed is None:
            self.owed = self.credit if self.terminal else available(self.fd)
        while self.fd is not None and self.owed > 0:
            if self.credit <= 0:
                return False
            if not self.take(min(CHUNK, self.owed, self.credit)):
                break
        self.owed = None
        return True

    def send_some(self):
        """Sends what is there now, as far as there is room that is not reserved."""
        left = 0 if self.fd is None else min(available(self.fd), self.credit - RESERVE)
        while left > 0 and self.fd is not None:
            count = self.take(min(CHUNK, left))
            if not count:
                break
            left -= count

    def end(self):
        if self.fd is not None:
            self.agent.tell(END, number(self.stream), number(0))
            self.agent.output_ended = True
            self.forget()

    def forget(self):
        if self.fd is not None:
            self.pause()
            close(self.fd)
            self.fd = None
            self.agent.streams.pop(self.stream, None)
            self.go_on()

    def release(self):
        """Stops reading, and returns the descriptor, which is for something else from now on."""
        fd, self.fd = self.fd, None
        if fd is not None:
            if self.watched:
                self.watched = False
                self.agent.unwatch(fd)
            self.agent.streams.pop(self.stream, None)
        return fd

    def credited(self, count):
        self.credit += count
        self.resume()
        self.go_on()

    def go_on(self):
        """Resumes what has waited for this stream."""
        dependents, self.dependents = self.dependents, []
        for action in dependents:
            action()

    def dropped(self):
        """Stops reading: a writer gets an error then."""
        self.forget()


class ControlSource(Source):
    """The control stream of a worker. What the worker wrote to the other streams before is sent before."""

    def __init__(self, agent, fd, stream, others):
        self.others = others
        super().__init__(agent, fd, stream)

    def ready(self, events):
        if not self.agent.has_room():
            self.pause()
            self.agent.park(self)
        elif self.drain():
            if events & EPOLLHUP and self.fd is not None and not available(self.fd):
                self.end()
        else:
            self.pause()

    def drain(self):
        if self.fd is None:
            return True
        # Counted first: what is added meanwhile may come after further output.
        left = available(self.fd)
        for other in self.others:
            if not other.drain():
                other.dependents.append(self.resume)
                return False
        self.agent.count_killed()
        while left > 0 and self.fd is not None:
            if self.credit <= 0:
                return False
            count = self.take(min(CHUNK, left, self.credit))
            if not count:
                break
            left -= count
        if self.agent.requests.is_quiet:
            self.agent.requests.go_on()
        return True

    def end(self):
        """Ends the stream. Usually the worker is dying, and its end says more than that of its stream."""
        if not self.has_ended:
            self.has_ended = True
            self.pause()
            self.agent.requests.later(DYING, super().end)


class Sink:
    """Writes data from the host to a descriptor."""

    is_pipe = False

    def __init__(self, agent, fd, stream):
        self.agent, self.fd, self.stream = agent, fd, stream
        self.queue = deque()
        self.ending = False
        self.watched = False
        self.taken = 0
        set_blocking(fd, False)
        agent.streams[stream] = self
        self.watch(False)

    def watch(self, for_room):
        """Watches the descriptor. A pipe reports by itself that its reader is gone; room has to be asked for."""
        if for_room or self.watched:
            self.agent.unwatch(self.fd)
        self.watched = for_room
        if for_room or self.is_pipe:
            self.agent.watch(self.fd, EPOLLOUT if for_room else 0, self.ready)

    def feed(self, data):
        self.queue.append((data, None))
        if len(self.queue) == 1:
            self.ready()

    def ready(self, events=0):
        if self.is_pipe and events & EPOLLERR:
            self.broken()
            return
        while self.queue:
            data, file = self.queue[0]
            try:
                count = self.write(data, file)
            except BlockingIOError:
                if not self.watched:
                    self.watch(True)
                return
            except OSError:
                self.broken()
                return
            if file is not None:
                close(file)
            self.used(count)
            if count == len(data):
                self.queue.popleft()
            else:
                self.queue[0] = (data[count:], None)
        if self.watched:
            self.watch(False)
        self.was_written()
        if self.ending:
            self.forget()

    def was_written(self):
        pass

    def write(self, data, file):
        return write(self.fd, data)

    def used(self, count):
        self.agent.used_up(count)
        self.taken += count
        if self.taken >= WINDOW // 4:
            self.agent.say(CREDIT, number(self.stream), number(self.taken))
            self.taken = 0

    def broken(self):
        """Reports to the host that the reader is gone."""
        self.agent.say(BROKEN, number(self.stream))
        self.forget()

    def ended(self):
        self.ending = True
        if not self.queue:
            self.forget()

    dropped = ended

    def credited(self, count):
        pass

    def forget(self):
        if self.fd is None:
            return
        self.watched = False
        self.agent.unwatch(self.fd)
        for data, file in self.queue:
            self.agent.used_up(len(data))
            if file is not None:
                close(file)
        self.queue.clear()
        close(self.fd)
        self.fd = None
        self.agent.streams.pop(self.stream, None)


    def release(self):
        """Stops writing, and returns the descriptor, which is for something else from now on. What waits is dropped."""
        fd, self.fd = self.fd, None
        if fd is not None:
            self.watched = False
            self.agent.unwatch(fd)
            self.queue.clear()
            self.agent.streams.pop(self.stream, None)
        return fd


class PipeSink(Sink):
    """Writes into a pipe: a reader that is gone is reported at once, and not with the next write."""

    is_pipe = True


class ProgramSink(PipeSink):
    """The standard input of a program: the number of bytes that were read is reported with the end of the program."""

    written = 0
    gauge = None  # the other end of a pipe that nothing more is written to
    is_over = False

    def used(self, count):
        self.written += count
        super().used(count)

    def forget(self):
        if self.fd is not None and not self.is_over:
            try:
                self.gauge = open("/proc/self/fd/%d" % self.fd, O_RDONLY | O_NONBLOCK | O_CLOEXEC)
            except OSError:
                pass  # it is not known then
        super().forget()

    def read_bytes(self):
        """Returns the number of bytes that the program has read by its end, or -1."""
        self.is_over = True
        fd, self.gauge = self.gauge, None
        try:
            return self.written - available(self.fd if fd is None else fd)
        except (OSError, TypeError):
            return -1
        finally:
            if fd is not None:
                close(fd)


class SocketSink(Sink):
    """Writes into a socket, whose other end sees the end of the data and may continue to send."""

    def __init__(self, agent, there, stream):
        self.there = there
        super().__init__(agent, there.fileno(), stream)

    @classmethod
    def both_ways(cls, agent, there, stream):
        """Connects a socket in both directions: what comes from it goes to the host as the next stream."""
        Source(agent, dup(there.fileno()), stream | 1)
        cls(agent, there, stream)

    def forget(self):
        if self.fd is not None:
            try:
                self.there.shutdown(SHUT_WR)
            except OSError:
                pass  # it has gone
            self.there.detach()
        super().forget()


class ControlSink(Sink):
    """The control stream of a worker; a descriptor may be attached to what is written."""

    def __init__(self, agent, control, stream, heard):
        self.control = control
        self.heard = heard
        self.once_written = []
        self.head = b""  # of the frame that is being fed: its length, its kind, and its id
        self.rest = 0  # bytes of that frame that are still to come
        self.last_request = None
        super().__init__(agent, control.fileno(), stream)

    def feed(self, data):
        self.heard()
        self.follow(data)
        super().feed(data)

    def follow(self, data):
        """Notes the ids of requests, and where frames begin and end."""
        data = memoryview(data)
        while data:
            if self.rest:
                count = min(self.rest, len(data))
                self.rest -= count
                data = data[count:]
                continue
            needed = HEAD - len(self.head)
            self.head += bytes(data[:needed])
            data = data[needed:]
            size = 4 + int.from_bytes(self.head[:4], "little") if len(self.head) >= 4 else HEAD
            if len(self.head) >= min(HEAD, size):
                if len(self.head) == HEAD and self.head[4] not in LATE:
                    self.last_request = int.from_bytes(self.head[9:HEAD], "little", signed=True)
                self.rest = size - len(self.head)
                self.head = b""

    def is_whole(self):
        """Returns true when all that was fed is written, and ends with the end of a frame."""
        return not self.queue and not self.head and not self.rest

    def release(self):
        """Stops writing, and returns the socket, which is for something else from now on."""
        self.watched = False
        self.agent.unwatch(self.fd)
        self.fd = None
        self.agent.streams.pop(self.stream, None)
        return self.control

    def feed_with_input(self, data, stream):
        theirs, ours = pipe2(O_CLOEXEC)
        PipeSink(self.agent, ours, stream)
        self.feed_with(data, theirs)

    def feed_with_channel(self, data, stream):
        theirs, ours = socketpair(AF_UNIX, SOCK_STREAM)
        SocketSink.both_ways(self.agent, ours, stream)
        self.feed_with(data, theirs.detach())

    def feed_with_copy(self, data, key):
        self.feed_with(data, self.agent.children.checkpoints.expect(key))

    def feed_with(self, data, file):
        self.heard()
        self.follow(data)
        self.queue.append((data, file))
        if len(self.queue) == 1:
            self.ready()

    def write(self, data, file):
        if file is None:
            return self.control.send(data)
        return self.control.sendmsg([data], [(1, 1, file.to_bytes(4, sys.byteorder))])

    def was_written(self):
        waiting, self.once_written = self.once_written, []
        for action in waiting:
            action()

    def forget(self):
        if self.fd is not None:
            self.control.detach()
        super().forget()
        self.was_written()
