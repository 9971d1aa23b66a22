"""A connection to a server in the container, as a stream in both directions."""

from posix import dup
from _socket import AF_INET, AF_INET6, AF_UNIX, SO_ERROR, SOCK_STREAM, SOL_SOCKET, socket
from select import EPOLLOUT

codec, pipes, requests = load("codec"), load("pipes"), load("requests")
available, CHUNK, RESERVE = pipes["available"], pipes["CHUNK"], pipes["RESERVE"]
EINPROGRESS, EAGAIN, ECONNREFUSED = 115, 11, 111


def connect(request, port, path, speaker, always):
    """Connects to a port of this host, IPv4 or IPv6, or to a Unix socket.

    With the id of a process that was started here, what that has written comes before what it sends on the connection.
    """
    port, speaker, always = map(codec["as_number"], (port, speaker, always))
    places = [(AF_INET, ("127.0.0.1", port)), (AF_INET6, ("::1", port))]
    if path:
        places = [(AF_UNIX, path)]
    problem = ECONNREFUSED
    for family, address in places:
        server = socket(family, SOCK_STREAM)
        server.setblocking(False)
        problem = server.connect_ex(address)
        if problem == EINPROGRESS:
            waker = lambda events: (request.agent.unwatch(server.fileno()), request.wake())
            request.agent.watch(server.fileno(), EPOLLOUT, waker)
            try:
                yield requests["WAIT"]
            finally:
                request.agent.unwatch(server.fileno())
            problem = server.getsockopt(SOL_SOCKET, SO_ERROR)
        if not problem:
            break
        server.close()
    if problem:
        raise OSError(problem, "")
    request.answer()
    request.close()
    # From here on the two streams are those of the connection.
    stream, request.stream, request.token = request.stream, -2, -1
    child = request.agent.children.owners.get(speaker)
    before = [] if child is None else list(child.sources)
    TunnelSource(request.agent, dup(server.fileno()), stream, before, bool(always))
    pipes["SocketSink"](request.agent, server, stream & ~1)
    return ()


class TunnelSource(pipes["Source"]):
    """Data from a server. What its process wrote before comes before: always, or as far as there is room for it."""

    def __init__(self, agent, fd, stream, before, always):
        self.before, self.always = before, always
        super().__init__(agent, fd, stream)

    def ready(self, events):
        if not self.before or not self.agent.has_room():
            super().ready(events)
        elif self.credit <= RESERVE:
            self.pause()
        else:
            # Counted first: what is added meanwhile may come after further output. No data is the end.
            count = min(available(self.fd) or 1, CHUNK, self.credit - RESERVE)
            if self.let_go_before():
                self.take(count)
            else:
                self.pause()

    def let_go_before(self):
        for other in self.before:
            if not self.always:
                other.send_some()
            elif not other.drain():
                other.dependents.append(self.resume)
                return False
        return True
