"""A connection to a server in the container, as a stream in both directions."""

from _socket import AF_INET, AF_INET6, AF_UNIX, SO_ERROR, SOCK_STREAM, SOL_SOCKET, socket
from select import EPOLLOUT

codec, pipes, jobs = load("codec"), load("pipes"), load("jobs")
EINPROGRESS, EAGAIN, ECONNREFUSED = 115, 11, 111


def connect(job, port, path):
    """To a port of this host, in either kind of address, or to a Unix socket."""
    port = codec["as_number"](port)
    places = [(AF_INET, ("127.0.0.1", port)), (AF_INET6, ("::1", port))]
    if path:
        places = [(AF_UNIX, path)]
    problem = ECONNREFUSED
    for family, address in places:
        server = socket(family, SOCK_STREAM)
        server.setblocking(False)
        problem = server.connect_ex(address)
        if problem == EINPROGRESS:
            waker = lambda events: (job.mux.unwatch(server.fileno()), job.wake())
            job.mux.watch(server.fileno(), EPOLLOUT, waker)
            try:
                yield jobs["WAIT"]
            finally:
                job.mux.unwatch(server.fileno())
            problem = server.getsockopt(SOL_SOCKET, SO_ERROR)
        if not problem:
            break
        server.close()
    if problem:
        raise OSError(problem, "")
    job.answer()
    job.close()
    # From here on the two streams are those of the connection.
    stream, job.stream, job.token = job.stream, -2, -1
    pipes["SocketSink"].both_ways(job.mux, server, stream & ~1)
    return ()
