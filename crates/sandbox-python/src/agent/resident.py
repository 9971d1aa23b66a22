"""What makes an agent resident: it outlives its clients, and keeps for the next one what belongs to the sandbox.

One client at a time; a new one takes over. Contexts that are idle stay, with their variables, and so
do commands in the background, with the end of their output. Code that runs is interrupted when its
client goes, commands in the foreground end, and calls of host tools fail with their run.
"""

import sys
from collections import deque
from posix import close, dup, read, set_blocking
from select import EPOLLIN

from _operator import _compare_digest as same
from _socket import AF_UNIX, SOCK_STREAM, socket

codec = load("codec")
number, text, frame, split, as_number = (
    codec[name] for name in ("number", "text", "frame", "split", "as_number")
)

STDIN, STDOUT, STDERR, CONTROL = range(4)
END, READY, PROTOCOL = 4, 16, 1
GET_VARIABLE, INTERRUPT = 2, 4
VALUE, FAILED = 23, 24
MAX_GREETING = 1024
GREETING_TIME = 5.0
# The request by which a worker shows that it is idle. No host has that id: theirs are random.
PROBE = 0x6F70_6172_6B65_64
# Seconds that code may take to end after it was interrupted. It is killed then.
GRACE = 10.0
CHUNK = 64 << 10
KEPT = 512 << 10  # bytes of each stream of a command that are kept without a client


class Resident:
    def __init__(self, agent, listener, version, token):
        self.agent, self.listener = agent, listener
        self.version, self.token = version, token
        self.epoch = 0
        self.parked = {}  # workers without a client, by context
        self.kept = {}  # commands in the background without a client, by label
        self.waiting = {}  # requests for a worker that is not idle yet, by context
        listener.setblocking(False)
        agent.watch(listener.fileno(), EPOLLIN, self.accept)

    # Clients.

    def accept(self, events):
        try:
            fd, _ = self.listener._accept()
        except OSError:
            return  # the client has gone, or no descriptor is left for it
        greeting = Greeting(self, socket(AF_UNIX, SOCK_STREAM, 0, fd))
        self.agent.requests.later(GREETING_TIME, greeting.give_up)

    def greeted(self, there, line):
        """Takes a client, or says why not."""
        version, _, rest = line.partition(" ")
        nonce, _, token = rest.partition(" ")
        answer = "taken"
        if version != self.version:
            answer = "the sandbox has an agent of another version, %s" % self.version
        elif not same(token, self.token):
            answer = "the token is not that of the agent"
        there.setblocking(True)
        there.sendall((answer + "\n").encode())
        if answer != "taken":
            there.close()
            return
        self.agent.leave_client()
        self.epoch += 1
        fd = there.detach()
        self.agent.enter_client(fd, dup(fd))
        self.agent.greet(nonce, self.epoch)

    # Contexts.

    def leave(self):
        """Keeps what outlives a client, and ends the rest."""
        children = self.agent.children
        self.waiting.clear()
        for key, child in list(children.all.items()):
            if child.status is not None:
                children.drop(key, child)
            elif child.is_worker and child.context and child.control is not None and child.control.is_whole():
                children.all.pop(key, None)
                self.parked[child.context] = Parked(self, child)
            elif child.label:
                children.all.pop(key, None)
                self.kept[child.label] = KeptCommand(self, child)
            else:
                self.agent.requests.run(children.kill_and_forget(key, child))

    def adopt(self, context, key):
        """Gives a parked worker to the client. Returns false when there is none."""
        parked = self.parked.get(context)
        if parked is None:
            return False
        if parked.is_idle:
            del self.parked[context]
            parked.give(key)
        else:
            self.waiting[context] = key
        return True

    def became_idle(self, parked):
        context = parked.child.context
        key = self.waiting.pop(context, None)
        if key is not None:
            del self.parked[context]
            parked.give(key)

    def died(self, parked):
        """A parked worker is dead. A client that waits for it gets a new one, which it is told of as of any other."""
        context = parked.child.context
        if self.parked.get(context) is parked:
            del self.parked[context]
        key = self.waiting.pop(context, None)
        if key is not None:
            self.agent.children.start_new_worker(key, parked.child.fields)

    def contexts(self):
        """Returns the contexts that are kept."""
        return [text(context) for context in self.parked]


    # Commands.

    def commands(self):
        """Returns the commands that are kept: label, and whether they have an input and a terminal."""
        fields = []
        for label, kept in self.kept.items():
            has_terminal = kept.child.terminal is not None
            fields += [text(label), number(kept.input is not None), number(has_terminal)]
        return fields

    def adopt_command(self, label, key):
        """Gives a command to the client. Returns false when there is none."""
        kept = self.kept.pop(label, None)
        if kept is not None:
            kept.give(key)
        return kept is not None


class Greeting:
    """A connection whose first line is still to come."""

    def __init__(self, resident, there):
        self.resident, self.there = resident, there
        self.line = b""
        there.setblocking(False)
        self.fd = there.fileno()
        resident.agent.watch(self.fd, EPOLLIN, self.ready)

    def ready(self, events):
        # A byte at a time: what follows the line is for the connection.
        while not self.line.endswith(b"\n"):
            try:
                piece = self.there.recv(1)
            except BlockingIOError:
                return
            except OSError:
                piece = b""
            self.line += piece
            if not piece or len(self.line) > MAX_GREETING:
                self.give_up()
                return
        self.resident.agent.unwatch(self.fd)
        there, self.there = self.there, None
        try:
            self.resident.greeted(there, str(self.line[:-1], "utf-8", "replace"))
        except OSError:
            pass  # the client has gone

    def give_up(self):
        if self.there is not None:
            self.resident.agent.unwatch(self.fd)
            self.there.close()
            self.there = None


class Parked:
    """A worker without a client. Its output is read and dropped; nothing else reads it meanwhile."""

    def __init__(self, resident, child):
        self.resident, self.agent, self.child = resident, resident.agent, child
        child.parked = self
        self.is_idle = False
        self.buffer = b""
        out, err, told = child.sources
        self.out, self.err, self.told = out.release(), err.release(), told.release()
        last_request = child.control.last_request
        self.control = child.control.release()
        child.sources, child.control = [], None
        for fd in (self.out, self.err):
            if fd is not None:
                self.agent.watch(fd, EPOLLIN, lambda events, fd=fd: self.drop(fd))
        if self.told is None:
            self.kill()
            return
        self.agent.watch(self.told, EPOLLIN, self.hear)
        try:
            set_blocking(self.control.fileno(), False)
            message = frame(GET_VARIABLE, number(PROBE), text("__name__"))
            if last_request is not None:
                message = frame(INTERRUPT, number(last_request)) + message
            if self.control.send(message) != len(message):
                self.kill()
                return
        except OSError:
            self.kill()
            return
        self.agent.children.interrupt_quietly(child.pid)
        self.agent.requests.later(GRACE, self.must_be_idle)

    def must_be_idle(self):
        if not self.is_idle and self.child.parked is self:
            self.kill()

    def kill(self):
        self.agent.requests.run(self.agent.children.kill_parked(self.child))

    def drop(self, fd):
        try:
            data = read(fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.agent.unwatch(fd)

    def hear(self, events):
        try:
            data = read(self.told, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.agent.unwatch(self.told)
            return
        self.buffer += data
        while len(self.buffer) >= 4:
            end = 4 + int.from_bytes(self.buffer[:4], "little")
            if len(self.buffer) < end:
                return
            message, self.buffer = self.buffer[4:end], self.buffer[end:]
            if message[0] in (VALUE, FAILED) and as_number(split(message[1:])[0]) == PROBE:
                self.is_idle = True
                self.resident.became_idle(self)
                return

    def stop_watching(self):
        for fd in (self.out, self.err, self.told):
            if fd is not None:
                self.agent.unwatch(fd)

    def give(self, key):
        """Gives the worker to the client, as one that is about to be ready."""
        self.stop_watching()
        children, child = self.agent.children, self.child
        child.parked, child.key, child.told = None, key, False
        children.all[key] = child
        self.agent.say(children.STARTED, number(key), number(child.pid))
        version = text("%d.%d.%d" % sys.version_info[:3])
        ready = frame(READY, number(PROTOCOL), number(child.pid), version, text(""))
        self.agent.data(key << 2 | CONTROL, ready)
        child.connect(self)
        child.sources[2].credit -= len(ready)

    def close(self):
        self.stop_watching()
        for fd in (self.out, self.err, self.told):
            if fd is not None:
                close(fd)
        self.control.close()
        self.child.parked = None
        self.resident.died(self)


class KeptStream:
    """An output stream of a command without a client, with the last of what came."""

    def __init__(self, agent, fd, which):
        self.agent, self.fd, self.which = agent, fd, which
        self.chunks, self.size = deque(), 0
        self.is_watched = fd is not None
        if self.is_watched:
            agent.watch(fd, EPOLLIN, self.ready)

    def ready(self, events):
        try:
            data = read(self.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal that no process has open any more
        if not data:
            self.stop()
            close(self.fd)
            self.fd = None
            return
        self.chunks.append(data)
        self.size += len(data)
        while self.size > KEPT:
            self.size -= len(self.chunks.popleft())

    def stop(self):
        if self.is_watched:
            self.is_watched = False
            self.agent.unwatch(self.fd)

    def give(self, key, is_terminal):
        """Gives the stream to the client. Returns its source, unless it has ended."""
        self.stop()
        stream = key << 2 | self.which
        for chunk in self.chunks:
            self.agent.data(stream, chunk)
        if self.fd is None:
            self.agent.tell(END, number(stream), number(0))
            return None
        source = load("pipes")["Source"](self.agent, self.fd, stream, is_terminal)
        source.credit -= self.size
        return source


class KeptCommand:
    """A command in the background without a client."""

    def __init__(self, resident, child):
        self.resident, self.agent, self.child = resident, resident.agent, child
        child.parked = self
        sink = self.agent.streams.get(child.key << 2 | STDIN)
        self.input = sink.release() if sink is not None else None
        self.streams = []
        for which, source in zip((STDOUT, STDERR), child.sources):
            self.streams.append(KeptStream(self.agent, source.release(), which))
        child.sources, child.input = [], None

    def close(self):
        """The command has ended, and its status is kept with the rest of its output."""
        self.child.parked = None

    def give(self, key):
        agent, child = self.agent, self.child
        child.parked, child.key, child.told = None, key, False
        agent.children.all[key] = child
        agent.say(agent.children.STARTED, number(key), number(child.pid))
        is_terminal = child.terminal is not None
        sources = [stream.give(key, is_terminal) for stream in self.streams]
        child.sources = [source for source in sources if source is not None]
        if self.input is not None:
            pipes = load("pipes")
            sink = pipes["Sink" if is_terminal else "ProgramSink"](agent, self.input, key << 2 | STDIN)
            if not is_terminal:
                child.input = sink
        child.finish()
