"""Requests of the host: each a generator, run a step at a time between other work.

A generator yields `WAIT` until there is news for it, a number of seconds, or nothing to continue as
soon as others had their turn. It returns the fields of its answer, or raises a `Problem` or an
`OSError`. One that streams answers first, and its end is the end of its stream.
"""

from collections import deque
from heapq import heappop, heappush
from time import monotonic

DATA, END, CREDIT, ANSWER = 3, 4, 5, 19
WINDOW = 1 << 20
CHUNK = 64 << 10
WAIT = "wait"
UNEXPECTED = 1
FOREVER = 3600.0
LARGE = 1 << 20  # bytes after which a request may be delayed
QUIET = 0.02  # maximum delay in seconds

codec = load("codec")
number, text, as_number = codec["number"], codec["text"], codec["as_number"]


class Problem(Exception):
    """An error of a request, as a number that the host has words for."""

    def __init__(self, code, detail=b""):
        self.code, self.detail = code, detail


class Request:
    """One request that is being worked on. Its two streams are the token's, one in each direction."""

    def __init__(self, requests, token):
        self.requests, self.agent, self.token = requests, requests.agent, token
        self.stream = token << 2 | 1
        self.credit = WINDOW
        self.inbox = deque()
        self.taken = 0
        self.moved = 0
        self.is_complete = False
        self.answered = False
        self.is_waiting = False
        self.generator = None

    # As a stream of the connection.

    def feed(self, data):
        self.inbox.append(data)
        self.wake()

    def ended(self):
        self.is_complete = True
        self.wake()

    def credited(self, count):
        self.credit += count
        self.wake()

    def dropped(self):
        self.requests.cancel(self.token)

    resume = None

    def wake(self):
        if self.is_waiting:
            self.is_waiting = False
            self.requests.ready.append(self)

    resume = wake

    # For its generator.

    def take(self):
        """Returns the next chunk from the host, or `None` at its end."""
        while not self.inbox:
            if self.is_complete:
                return None
            yield WAIT
        data = self.inbox.popleft()
        self.agent.used_up(len(data))
        self.moved += len(data)
        self.taken += len(data)
        if self.taken >= WINDOW // 4:
            self.agent.say(CREDIT, number(self.token << 2), number(self.taken))
            self.taken = 0
        return data

    def room(self):
        """Waits for room, and returns its size."""
        while self.credit <= 0 or not self.agent.has_room():
            if self.credit > 0:
                self.agent.park(self)
            yield WAIT
        return min(CHUNK, self.credit)

    def give(self, data):
        """Sends data on the stream."""
        view = memoryview(data)
        while view:
            most = yield from self.room()
            piece = view[:most]
            self.credit -= len(piece)
            self.moved += len(piece)
            self.agent.data(self.stream, bytes(piece))
            view = view[most:]

    def answer(self, fields=()):
        self.answered = True
        self.agent.tell(ANSWER, number(self.token), number(0), text(""), codec["several"](fields))

    # Its end.

    def done(self, fields):
        if not self.answered:
            self.answer([codec["put"](field) if type(field) is memoryview else field for field in fields or ()])
        elif self.token >= 0:
            self.agent.tell(END, number(self.stream), number(0))
        self.close()

    def failed(self, error):
        code, detail = UNEXPECTED, b""
        if isinstance(error, Problem):
            code, detail = error.code, error.detail
        elif isinstance(error, OSError) and error.errno:
            code = -error.errno
        else:
            detail = ("%s: %s" % (type(error).__name__, error)).encode("utf-8", "replace")
        detail = codec["put"](detail)
        if self.answered:
            self.agent.tell(END, number(self.stream), number(code), detail)
        else:
            self.agent.tell(ANSWER, number(self.token), number(code), detail, codec["put"](b""))
        self.close()

    def close(self):
        for data in self.inbox:
            self.agent.used_up(len(data))
        self.inbox.clear()
        streams = self.agent.streams
        streams.pop(self.stream, None)
        streams.pop(self.token << 2, None)
        self.requests.all.pop(self.token, None)


class RequestQueue:
    def __init__(self, agent):
        self.agent = agent
        self.all = {}
        self.ready = deque()
        self.held = deque()
        self.is_quiet = False
        self.timers = []
        self.count = 0

    def timeout(self):
        if self.ready:
            return 0
        if self.timers:
            return max(0.0, self.timers[0][0] - monotonic())
        return FOREVER

    def later(self, seconds, action):
        self.count += 1
        heappush(self.timers, (monotonic() + seconds, self.count, action))

    def keep_quiet(self):
        """Delays large transfers for a moment, or until an interpreter has answered: it was interrupted, and needs the processors
        more than a transfer does.
        """
        self.is_quiet = True
        self.later(QUIET, self.go_on)

    def go_on(self):
        self.is_quiet = False
        self.ready.extend(self.held)
        self.held.clear()

    def begin(self, token, verb, arguments):
        request = Request(self, token)
        self.all[token] = request
        self.agent.streams[token << 2] = request
        self.agent.streams[request.stream] = request
        try:
            request.generator = load("dispatch")["begin"](request, verb, arguments)
        except Exception as error:
            request.failed(error)
            return
        self.step_one(request)

    def run(self, generator):
        """Runs a generator that is not awaited."""
        request = Request(self, -1)
        request.answered = True
        request.generator = generator
        self.ready.append(request)

    def cancel(self, token):
        request = self.all.get(token)
        if request is not None:
            request.generator.close()
            request.generator = None
            request.close()

    def step(self):
        now = monotonic()
        while self.timers and self.timers[0][0] <= now:
            heappop(self.timers)[2]()
        for _ in range(len(self.ready)):
            request = self.ready.popleft()
            if self.is_quiet and request.moved > LARGE:
                self.held.append(request)
            elif request.generator is not None:
                self.step_one(request)

    def step_one(self, request):
        try:
            wish = next(request.generator)
        except StopIteration as end:
            request.done(end.value)
        except Exception as error:
            request.failed(error)
        else:
            if wish is None:
                self.ready.append(request)
            else:
                request.is_waiting = True
                if wish is not WAIT:
                    self.later(wish, request.wake)
