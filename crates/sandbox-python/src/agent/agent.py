"""The agent of a container: everything between its processes and one byte stream out of the container.

The agent is the first process there, starts and reaps all others, and runs no user code itself. Many
streams share the one connection: data in chunks, each stream with as many bytes on their way as the
host has room for, and small messages before all waiting data. When the connection ends, or nothing
has been received for the time of a lease, this process ends, and everything with it.
"""

import sys
from collections import deque
from posix import O_CLOEXEC, O_RDWR
from posix import _exit, close, dup2, open, pipe2, read, set_blocking, writev
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from select import EPOLLIN, EPOLLOUT, epoll
from time import monotonic
from _signal import SIGCHLD, set_wakeup_fd

from fcntl import F_DUPFD_CLOEXEC, fcntl

VERSION = 1
SPAWN, WORKER, DATA, END, CREDIT, DROP, SIGNAL, CALL, CANCEL, PING, FORGET = range(1, 12)
INPUT, FINISH, CHANNEL, COPY = 12, 13, 14, 15
HELLO, STARTED, NOT_STARTED, ANSWER, EXIT, PONG, BROKEN, FINISHED, KILLED = range(16, 25)
# Data and its end have the same numbers in both directions.

CONNECTION = -1  # the stream number in a credit that is about the connection
CONNECTION_WINDOW = 32 << 20
CREDIT_STEP = 1 << 20
CHUNK_SIZE = 256 << 10
MAX_WAITING = 512 << 10  # bytes that wait to be written; from then on nothing more is read
BATCH = 64
WORTH_NO_COPY = 4 << 10
LEASE = 30.0
REHEARSALS = 5  # enough that no worker has to compile or import what all of them need
POLL_INTERVAL = 5.0
F_SETPIPE_SZ = 1031
PIPE_SIZE = 1 << 20

codec = load("codec")
kills_for_memory = load("processes")["kills_for_memory"]
frame, number, text, put, split = (
    codec[name] for name in ("frame", "number", "text", "put", "split")
)
as_number, as_text = codec["as_number"], codec["as_text"]


class Become(BaseException):
    """Leaves everything of the agent behind, because this process is a new worker now."""


class Agent:
    def __init__(self):
        self.source = self.sink = None  # of the client, while there is one
        self.resident = None
        self.poll = epoll()
        self.actions = {}
        self.streams = {}
        self.parked = []
        self.small = deque()
        self.large = deque()
        self.batch = []
        self.waiting = 0
        self.blocked = False
        self.credit = CONNECTION_WINDOW
        self.used = 0
        self.buffer = bytearray()
        self.heard = monotonic()
        self.killed = 0
        self.output_ended = False  # of some process, since dead processes were last looked for
        self.requests = load("requests")["RequestQueue"](self)
        self.children = load("children")["Children"](self)
        self.watch_for_deaths()

    # Clients.

    def enter_client(self, source, sink):
        """Takes the streams of a client."""
        self.source, self.sink = source, sink
        for fd in (source, sink):
            set_blocking(fd, False)
            try:
                fcntl(fd, F_SETPIPE_SZ, PIPE_SIZE)
            except OSError:
                pass  # no pipe, or the limit is lower
        self.heard = monotonic()
        self.watch(source, EPOLLIN, self.receive)

    def leave_client(self):
        """Ends the connection of a client, if there is one, and what belongs to the client."""
        if self.source is None:
            return
        self.unwatch(self.source)
        if self.blocked:
            self.unwatch(self.sink)
        close(self.source)
        close(self.sink)
        self.source = self.sink = None
        self.blocked = False
        self.parked.clear()
        for token in list(self.requests.all):
            self.requests.cancel(token)
        self.resident.leave()
        for stream in list(self.streams.values()):
            stream.dropped()
        self.streams.clear()
        self.small.clear()
        self.large.clear()
        self.batch.clear()
        self.buffer.clear()
        self.waiting = self.used = 0
        self.credit = CONNECTION_WINDOW

    def greet(self, nonce, epoch):
        python = text("%d.%d.%d" % sys.version_info[:3])
        self.say(HELLO, number(VERSION), text(nonce), python, number(self.most_files), number(epoch))
        self.flush()

    def lose_client(self):
        """Handles the end of the connection, with which everything ends unless the agent is resident."""
        if self.resident is None:
            finish()
        self.leave_client()

    def watch_for_deaths(self):
        near, far = pipe2(O_CLOEXEC)
        set_blocking(near, False)
        set_blocking(far, False)
        set_signal(SIGCHLD, lambda signum, frame: None)
        set_wakeup_fd(far, warn_on_full_buffer=False)

        def died(events):
            try:
                read(near, 4096)
            except BlockingIOError:
                pass
            self.children.reap()

        self.watch(near, EPOLLIN, died)

    def keep_open_files(self):
        """Raises the limit of this process over that of others: without descriptors it could neither start nor report anything."""
        soft, hard = getrlimit(RLIMIT_NOFILE)
        setrlimit(RLIMIT_NOFILE, (hard, hard))
        usual, most = OPEN_FILES
        theirs = load("worker")["lowered"](hard, usual or soft, most or hard)
        self.children.open_files = (RLIMIT_NOFILE, *theirs)
        self.most_files = theirs[1]

    def become(self, request):
        """Leaves the agent, in a new process that becomes a worker."""
        set_wakeup_fd(-1)
        reset_signals()
        raise Become(request)

    @staticmethod
    def reset_ignored_signals():
        """Resets signals in a new process that becomes a program, which keeps no handler, but what is ignored."""
        set_wakeup_fd(-1)
        reset_signals((), IGNORED)

    # Descriptors.

    def watch(self, fd, events, action):
        self.actions[fd] = action
        self.poll.register(fd, events)

    def unwatch(self, fd):
        if self.actions.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def run(self):
        while True:
            timeout = min(POLL_INTERVAL, self.requests.timeout())
            found = self.poll.poll(timeout)
            self.count_killed()
            for fd, events in found:
                action = self.actions.get(fd)
                if action is not None:
                    action(events)
            if self.output_ended:
                # The program has mostly ended too: one message reports both, which two other programs have to pass on.
                self.output_ended = False
                self.children.reap()
            self.requests.step()
            self.flush()
            if self.resident is None and monotonic() - self.heard > LEASE:
                # What arrived while this process was paused counts.
                self.receive(EPOLLIN)
                if monotonic() - self.heard > LEASE:
                    finish()

    def count_killed(self):
        """Reports how many processes the kernel has killed for memory, before the effects of that."""
        killed = kills_for_memory()
        if killed != self.killed:
            self.killed = killed
            self.tell(KILLED, number(killed))

    # To the host.

    def say(self, kind, *fields):
        """Sends before all data that waits."""
        self.append(self.small, frame(kind, *fields))

    def tell(self, kind, *fields):
        """Sends after all data that was sent before."""
        self.append(self.large, frame(kind, *fields))

    def data(self, stream, data):
        size = len(data)
        self.credit -= size
        if size < WORTH_NO_COPY:
            self.tell(DATA, number(stream), put(data))
            return
        # A frame in two parts, so that what is large is not copied into it.
        head = bytes((DATA,)) + number(stream) + size.to_bytes(4, "little")
        head = (len(head) + size).to_bytes(4, "little") + head
        if self.sink is None:
            return
        self.large.append((head, data))
        self.waiting += len(head) + size

    def append(self, queue, message):
        if self.sink is None:
            return  # there is no client that would read it
        queue.append(message)
        self.waiting += len(message)

    def has_room(self):
        return self.waiting < MAX_WAITING and self.credit > 0

    def park(self, source):
        """Resumes the source when there is room again."""
        self.parked.append(source)

    def unpark(self):
        if self.parked and self.has_room():
            parked, self.parked = self.parked, []
            for source in parked:
                source.resume()

    def flush(self, events=0):
        while self.batch or self.small or self.large:
            while len(self.batch) < BATCH and self.small:
                self.batch.append(memoryview(self.small.popleft()))
            while len(self.batch) < BATCH and self.large:
                message = self.large.popleft()
                # The two parts of a frame stay together: nothing comes between them.
                self.batch.extend(map(memoryview, message if type(message) is tuple else (message,)))
            try:
                count = writev(self.sink, self.batch)
            except BlockingIOError:
                if not self.blocked:
                    self.blocked = True
                    self.watch(self.sink, EPOLLOUT, self.flush)
                break
            except OSError:
                self.lose_client()
                return
            self.waiting -= count
            done = 0
            while done < len(self.batch) and count >= len(self.batch[done]):
                count -= len(self.batch[done])
                done += 1
            del self.batch[:done]
            if count:
                self.batch[0] = self.batch[0][count:]
        else:
            if self.blocked:
                self.blocked = False
                self.unwatch(self.sink)
        self.unpark()

    # From the host.

    def receive(self, events):
        try:
            piece = read(self.source, CHUNK_SIZE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.lose_client()
            return
        self.heard = monotonic()
        buffer = self.buffer
        buffer += piece
        at = 0
        while len(buffer) - at >= 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "little")
            if len(buffer) < end:
                break
            message = bytes(buffer[at + 4 : end])
            at = end
            self.take(message[0], message)
        del buffer[:at]

    def take(self, kind, message):
        if kind in (DATA, INPUT, CHANNEL, COPY):
            stream = self.streams.get(int.from_bytes(message[5:13], "little", signed=True))
            if kind != DATA:
                _, new, piece = split(message[1:])
                self.used_up(len(piece))
                if stream is not None:
                    try:
                        if kind == INPUT:
                            stream.feed_with_input(piece, as_number(new))
                        elif kind == CHANNEL:
                            stream.feed_with_channel(piece, as_number(new))
                        else:
                            stream.feed_with_copy(piece, as_number(new))
                    except OSError:
                        stream.broken()  # no descriptor is left for it
                return
            size = len(message) - 17
            if stream is None:
                self.used_up(size)
            else:
                stream.feed(memoryview(message)[17:])
            return
        fields = split(message[1:])
        if kind == PING:
            self.say(PONG)
        elif kind == CREDIT:
            self.credited(as_number(fields[0]), as_number(fields[1]))
        elif kind in (END, DROP):
            stream = self.streams.get(as_number(fields[0]))
            if stream is not None:
                stream.ended() if kind == END else stream.dropped()
        elif kind == SPAWN:
            self.children.spawn(fields)
        elif kind == WORKER:
            self.children.start_worker(fields)
        elif kind == SIGNAL:
            self.children.signal(*[as_number(field) for field in fields])
        elif kind == FORGET:
            self.children.forget(as_number(fields[0]), as_number(fields[1]))
        elif kind == CALL:
            self.requests.begin(as_number(fields[0]), as_text(fields[1]), split(fields[2]))
        elif kind == CANCEL:
            self.requests.cancel(as_number(fields[0]))
        elif kind == FINISH:
            finish(told=True)
        else:
            _exit(2)

    def credited(self, stream, count):
        if stream == CONNECTION:
            self.credit += count
            self.unpark()
            return
        stream = self.streams.get(stream)
        if stream is not None:
            stream.credited(count)

    def used_up(self, count):
        """Credits data of the host that was taken."""
        self.used += count
        if self.used >= CREDIT_STEP:
            self.say(CREDIT, number(CONNECTION), number(self.used))
            self.used = 0


def finish(told=False):
    """Ends everything, because the host is gone or asks for it. A host that asks is answered when nothing runs any more."""
    have_ended = AGENT.children.end_everything()
    if told and have_ended:
        AGENT.small.clear()
        AGENT.large.clear()
        AGENT.say(FINISHED)
        AGENT.flush()
    _exit(0)


def main():
    global AGENT
    # The kernel sends the first process of a container only signals that it handles.
    reset_signals()
    load("hooks")["install"](sys)
    worker = load("worker")
    worker["prepare"]()
    load("seccomp")["keep_login"]()
    worker["prctl"](worker["PR_SET_DUMPABLE"], 0)
    AGENT = Agent()
    AGENT.keep_open_files()
    if RESIDENT is None:
        source, sink = fcntl(0, F_DUPFD_CLOEXEC, 10), fcntl(1, F_DUPFD_CLOEXEC, 10)
        null = open("/dev/null", O_RDWR | O_CLOEXEC)
        dup2(null, 0)
        dup2(null, 1)
        close(null)
        AGENT.enter_client(source, sink)
        AGENT.greet(NONCE, 0)
    else:
        # What a program leaves behind at its end is to come here, and not to the first process of the sandbox.
        worker["prctl"](worker["PR_SET_CHILD_SUBREAPER"], 1)
        AGENT.resident = load("resident")["Resident"](AGENT, *RESIDENT)
    load("driver")
    load("warmup")["warm"](REHEARSALS)
    try:
        AGENT.run()
    except Become as become:
        request = become.args[0]
    del AGENT
    load("seccomp")["give_up_calls"]()  # before other processes may access this one
    worker["enter"](request)
    load("children")["stand_back"]()
    load("driver")["serve"](request)


main()
