"""Ports of the container's loopback whose connections the host accepts, each as a stream in both directions."""

from _socket import AF_INET, SOCK_STREAM, socket
from collections import deque
from select import EPOLLIN

codec, pipes, requests = load("codec"), load("pipes"), load("requests")
number, as_number = codec["number"], codec["as_number"]

MAX_QUEUE = 256
POLL_INTERVAL = 0.05
WINDOW = pipes["WINDOW"] // 2  # many of them may be read slowly at once
LISTENERS = {}


def listen(request):
    """Listens on a free port."""
    listener = Listener(request.agent)
    LISTENERS[listener.port] = listener
    return [number(listener.port)]
    yield


def accept(request, port):
    """Waits for the next connection to a port."""
    client = yield from LISTENERS[as_number(port)].next(request)
    request.answer()
    request.close()
    # From here on the two streams are those of the connection.
    stream, request.stream, request.token = request.stream, -2, -1
    pipes["SocketSink"].both_ways(request.agent, client, stream & ~1)
    request.agent.streams[stream].credit -= pipes["WINDOW"] - WINDOW
    return ()


class Listener:
    """A listening socket. A connection stays in the kernel's queue until a request waits for it."""

    def __init__(self, agent):
        self.agent = agent
        self.waiting = deque()
        self.watched = False
        self.socket = socket(AF_INET, SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(MAX_QUEUE)
        self.port = self.socket.getsockname()[1]

    def next(self, request):
        turn = Turn(request)
        self.waiting.append(turn)
        self.resume()
        try:
            while turn.client is None:
                yield requests["WAIT"]
        finally:
            if turn in self.waiting:
                self.waiting.remove(turn)
        return turn.client

    def resume(self):
        if self.waiting and not self.watched:
            self.watched = True
            self.agent.watch(self.socket.fileno(), EPOLLIN, self.ready)

    def pause(self):
        self.watched = False
        self.agent.unwatch(self.socket.fileno())

    def ready(self, events):
        if not self.waiting:
            self.pause()
            return
        try:
            fd, _ = self.socket._accept()
        except (BlockingIOError, ConnectionError):
            return  # the connection has ended again
        except OSError:
            # There is no descriptor left.
            self.pause()
            self.agent.requests.later(POLL_INTERVAL, self.resume)
            return
        turn = self.waiting.popleft()
        turn.client = socket(fileno=fd)
        turn.request.wake()


class Turn:
    """A waiting request. A connection that it was given ends with it, unless it was taken."""

    def __init__(self, request):
        self.request = request
        self.client = None
