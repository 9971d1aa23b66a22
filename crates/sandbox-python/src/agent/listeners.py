"""Ports of the container's loopback whose connections the host takes, each as a stream in both directions."""

from _socket import AF_INET, SOCK_STREAM, socket
from collections import deque
from select import EPOLLIN

codec, pipes, jobs = load("codec"), load("pipes"), load("jobs")
number, as_number = codec["number"], codec["as_number"]

LONGEST_QUEUE = 256
PAUSE = 0.05
WINDOW = pipes["WINDOW"] // 2  # many of them may be read slowly at once
LISTENERS = {}


def listen(job):
    """A port that nobody else listens on."""
    listener = Listener(job.mux)
    LISTENERS[listener.port] = listener
    return [number(listener.port)]
    yield


def accept(job, port):
    """The next connection to a port that was given."""
    client = yield from LISTENERS[as_number(port)].next(job)
    job.answer()
    job.close()
    # From here on the two streams are those of the connection.
    stream, job.stream, job.token = job.stream, -2, -1
    pipes["SocketSink"].both_ways(job.mux, client, stream & ~1)
    job.mux.streams[stream].credit -= pipes["WINDOW"] - WINDOW
    return ()


class Listener:
    """Nothing is accepted before somebody waits for it: until then it waits in the kernel's queue."""

    def __init__(self, mux):
        self.mux = mux
        self.waiting = deque()
        self.watched = False
        self.socket = socket(AF_INET, SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(LONGEST_QUEUE)
        self.port = self.socket.getsockname()[1]

    def next(self, job):
        turn = Turn(job)
        self.waiting.append(turn)
        self.resume()
        try:
            while turn.client is None:
                yield jobs["WAIT"]
        finally:
            if turn in self.waiting:
                self.waiting.remove(turn)
        return turn.client

    def resume(self):
        if self.waiting and not self.watched:
            self.watched = True
            self.mux.watch(self.socket.fileno(), EPOLLIN, self.ready)

    def pause(self):
        self.watched = False
        self.mux.unwatch(self.socket.fileno())

    def ready(self, events):
        if not self.waiting:
            self.pause()
            return
        try:
            fd, _ = self.socket._accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        except OSError:
            # No descriptor is left.
            self.pause()
            self.mux.jobs.later(PAUSE, self.resume)
            return
        turn = self.waiting.popleft()
        turn.client = socket(fileno=fd)
        turn.job.wake()


class Turn:
    """One that waits. What it was given ends with it, unless it was taken."""

    def __init__(self, job):
        self.job = job
        self.client = None
