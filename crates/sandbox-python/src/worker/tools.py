"""Calls of tools of the host.

Answers come on the control stream, which the driver reads between two requests. While code runs, the code that waits
for an answer reads it: an event loop by a callback, other code in `Calls.wait`, where one thread reads for all of them.
So no thread is started, and nothing is read when no answer is awaited.
"""

import builtins
import json
from _thread import allocate_lock, get_ident
from collections import deque
from posix import getpid
from select import POLLIN
from select import poll as make_poll

from _socket import MSG_DONTWAIT

codec = load("codec")
text, number, frame, put, as_number = (codec[name] for name in ("text", "number", "frame", "put", "as_number"))
MAIN_THREAD = load("driver")["MAIN_THREAD"]

TOOL_RESULT = 5
TOOL_CALL, LIST_TOOLS, CANCEL_TOOL = 25, 26, 27
# The host kills an interpreter that exceeds these.
MAX_CALLS = 64
MAX_JSON_BYTES = 16 << 20
MAX_PENDING_BYTES = 2 * MAX_JSON_BYTES
# How soon a thread notices that its run has ended, and that another one has stopped reading.
TICK = 50
MAX_READS = 64
OVER = b"the run that called it is over"
NO_RUN = "no run is active, so that no tool can be called"
COPY = "only the interpreter itself calls tools, not a process that it started"

ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

# The driver takes a frame with Python's own builtins for user code: there interrupts are raised and not put off.
PAUSE = {"__builtins__": builtins}
exec(compile("def pause(wait, *limit):\n    return wait(*limit)\n", "<sandbox importlib._bootstrap tools>", "exec"), PAUSE)
pause = PAUSE["pause"]


class Call:
    def __init__(self, kind, name=None, body=b""):
        self.kind, self.name, self.body = kind, name, body
        self.number = None
        self.answer = None  # whether it succeeded, and the content
        self.loop = self.future = None
        self.wake = None


class Masked:
    """Delays interrupts while this thread is in modules of Python, which would be left half done."""

    def __init__(self, driver):
        self.driver = driver

    def __enter__(self):
        self.driver.masked += get_ident() == MAIN_THREAD

    def __exit__(self, *raised):
        self.driver.masked -= get_ident() == MAIN_THREAD


class Calls:
    """The calls of this interpreter that have no answer yet."""

    def __init__(self, driver, error):
        self.driver = driver
        self.error = error
        self.masked = Masked(driver)
        self.lock = allocate_lock()
        self.last = 0
        self.sent = {}
        self.held = deque()  # until there is room
        self.bytes = 0
        self.leader = None  # the call whose thread reads
        self.loops = {}
        self.poll = make_poll()
        self.poll.register(driver.control, POLLIN)

    # Messages to the host.

    def start(self, call):
        with self.lock:
            self.last += 1
            call.number = self.last
            self.held.append(call)
            ready = self.admitted()
        self.send(ready)
        if call.answer is None and self.driver.current is None:
            raise self.error(NO_RUN, call.name)

    def admitted(self):
        """Takes calls that there is room for now. Called with the lock."""
        ready = []
        while self.held:
            call = self.held[0]
            if len(self.sent) >= MAX_CALLS or self.bytes + len(call.body) > MAX_PENDING_BYTES:
                break
            self.held.popleft()
            self.sent[call.number] = call
            self.bytes += len(call.body)
            ready.append(call)
        return ready

    def send(self, ready):
        for call in ready:
            fields = (text(call.name), put(call.body)) if call.kind == TOOL_CALL else ()
            if not self.tell(call.kind, number(call.number), *fields):
                self.forget(call)
                self.finish(call, (False, NO_RUN.encode()))

    def tell(self, kind, *fields):
        """Sends a message. Returns false when there is no run that can call."""
        driver = self.driver
        with self.masked, driver.lock:
            if driver.current is None:
                return False
            driver.send(frame(kind, number(driver.current), *fields))
        return True

    def forget(self, call):
        with self.lock:
            if self.sent.pop(call.number, None) is not None:
                self.bytes -= len(call.body)
            elif call in self.held:
                self.held.remove(call)

    def drop(self, call):
        """Drops a call that is not awaited any more."""
        if call.number is None or getpid() != self.driver.pid:
            return
        # The host must know before the next one takes its place.
        if call.number in self.sent:
            self.tell(CANCEL_TOOL, number(call.number))
        self.forget(call)
        with self.lock:
            ready = self.admitted()
        self.send(ready)

    # Messages from the host.

    def read(self, loop=None):
        """Takes the messages of the host, and wakes the waiting code."""
        driver = self.driver
        if getpid() != driver.pid:
            return
        answered = []
        with self.masked:
            with self.lock:
                # Between runs the driver reads.
                if driver.current is not None:
                    self.receive()
                    answered = self.answers()
                ready = self.admitted()
            for call, answer in answered:
                self.finish(call, answer, loop)
            self.send(ready)

    def receive(self):
        for _ in range(MAX_READS):
            before = len(self.driver.buffer)
            self.driver.receive(MSG_DONTWAIT)
            if len(self.driver.buffer) == before:
                return

    def answers(self):
        answered = []
        while True:
            told = self.driver.buffered_answer()
            if told is None:
                return answered
            kind, fields = told
            call = self.sent.pop(as_number(fields[1]), None) if kind == TOOL_RESULT else None
            if call is not None:
                self.bytes -= len(call.body)
                answered.append((call, (any(fields[2]), fields[3])))

    def finish(self, call, answer, loop=None):
        call.answer = answer
        if call.future is None:
            wake(call)
        elif call.loop is loop:
            settle(call.future)
        else:
            try:
                call.loop.call_soon_threadsafe(settle, call.future)
            except RuntimeError:
                pass  # closed, so that nothing waits

    def end(self):
        """Ends the calls of a run. None of them is answered any more."""
        with self.masked:
            with self.lock:
                calls = list(self.sent.values()) + list(self.held)
                self.sent.clear()
                self.held.clear()
                self.bytes = 0
            for call in calls:
                self.finish(call, (False, OVER))

    # Waiting.

    async def wait_in_loop(self, call):
        from asyncio import get_running_loop

        call.loop = loop = get_running_loop()
        call.future = loop.create_future()
        self.listen(loop)
        try:
            self.start(call)
            await call.future
        finally:
            if call.answer is None:
                self.drop(call)
            self.leave(loop)
        # The answer may be that the run was interrupted, and come before the interrupt, which had to wait.
        self.driver.deliver()

    def listen(self, loop):
        with self.masked:
            count = self.loops.get(loop, 0)
            if count == 0:
                loop.add_reader(self.driver.control, self.on_readable, loop)
            self.loops[loop] = count + 1

    def leave(self, loop):
        with self.masked:
            self.loops[loop] -= 1
            if self.loops[loop] == 0:
                del self.loops[loop]
                loop.remove_reader(self.driver.control)

    def on_readable(self, loop):
        # A thread that reads has been woken too.
        if self.leader is None:
            self.read(loop)

    def wait(self, call):
        call.wake = allocate_lock()
        call.wake.acquire()
        try:
            self.start(call)
            while call.answer is None:
                self.wait_once(call)
        finally:
            if call.answer is None:
                self.drop(call)
        self.driver.deliver()

    def wait_once(self, call):
        with self.lock:
            leads = self.leader is None
            if leads:
                self.leader = call
        if not leads:
            pause(call.wake.acquire, True, TICK / 1000)
            if call.answer is None:
                self.read()
            return
        try:
            while call.answer is None:
                pause(self.poll.poll, TICK)
                self.read()
        finally:
            self.follow(call)

    def follow(self, call):
        """Stops reading; another thread that waits continues."""
        with self.lock:
            self.leader = None
            others = [other for other in self.sent.values() if other.future is None and other is not call]
        if others:
            wake(others[0])


def wake(call):
    try:
        call.wake.release()
    except RuntimeError:
        pass  # it has been woken already


def settle(future):
    if not future.done():
        future.set_result(None)


def understood(names, given):
    """Returns name and arguments, in whatever way they were given."""
    if len(names) > 2:
        raise TypeError("a tool is called with its name and a dict of arguments, %d values were given" % len(names))
    if names:
        name = names[0]
    elif "name" in given:
        name = given.pop("name")
    else:
        raise TypeError("a tool is called with its name first")
    if not isinstance(name, str):
        raise TypeError("the name of a tool is a string, not %s" % type(name).__name__)
    arguments = None
    if len(names) == 2:
        arguments = names[1]
    elif list(given) == ["arguments"]:
        arguments = given.pop("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise TypeError("the arguments of tool %r are a dict, not %s" % (name, type(arguments).__name__))
    return name, encoded(name, {**arguments, **given})


def encoded(name, arguments):
    try:
        body = ENCODER.encode(arguments).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        problem = kind("the arguments of tool %r have no JSON form: %s" % (name, error))
    else:
        if len(body) <= MAX_JSON_BYTES:
            return body
        message = "the arguments of tool %r are %d bytes of JSON, over the limit of %d"
        problem = ValueError(message % (name, len(body), MAX_JSON_BYTES))
    raise problem


def value(call, error):
    ok, content = call.answer
    if not ok:
        raise error(str(content, "utf-8"), call.name)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as failure:
        problem = error("the result cannot be read: %s" % failure, call.name)
    raise problem


def calls_of(driver, error):
    if getpid() != driver.pid:
        raise error(COPY)
    if driver.calls is None:
        driver.calls = Calls(driver, error)
    return driver.calls


async def call(driver, error, names, given):
    call = Call(TOOL_CALL, *understood(names, given))
    await calls_of(driver, error).wait_in_loop(call)
    return value(call, error)


def call_sync(driver, error, names, given):
    call = Call(TOOL_CALL, *understood(names, given))
    calls_of(driver, error).wait(call)
    return value(call, error)


def listing(driver, error):
    call = Call(LIST_TOOLS)
    calls_of(driver, error).wait(call)
    return value(call, error)
