"""Carries bytes between the host and an agent, on the stdin channel of the kernel that runs this code.

This is the only request of the kernel, and ends with the agent. The agent is a child process, whose pipes are the two
streams. Each piece carries its offset in its stream, and the acknowledged offset of the other stream; unacknowledged
pieces are kept, and sent again after a connection broke.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from shutil import rmtree
from time import monotonic, sleep

import zmq
from IPython import get_ipython

PREFIX = SETTINGS["prefix"]
CHUNK_SIZE = 256 << 10
# Maximum number of unacknowledged bytes and messages. Queues on the way limit the messages.
MAX_UNACKED_BYTES = 4 << 20
MAX_UNACKED_CHUNKS = 128
MAX_STDERR = 4 << 10
POLL_INTERVAL = 0.5
# Limits the wait for the acknowledgement of the last output.
LINGER_TIMEOUT = 10.0
MAX_KILL_ROUNDS = 200
PR_SET_CHILD_SUBREAPER = 36


class StdinTransport:
    def __init__(self, shell):
        self.shell, self.kernel = shell, shell.kernel
        self.socket = self.kernel.stdin_socket
        self.ident, self.parent = stdin_peer(self.kernel)
        # To the host.
        self.sent = 0
        self.unacked = deque()
        # From the host: the offsets that were received, passed to the agent, and acknowledged.
        self.received = self.passed = self.acked = 0
        self.queue = deque()
        self.ended_by_host = False
        self.stderr_tail = b""
        self.start()

    def start(self):
        # Orphans of the agent become children of this process, which ends them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        pipe = subprocess.PIPE
        command = [sys.executable] + SETTINGS["arguments"]
        self.agent = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd="/", start_new_session=True
        )
        self.into, self.out, self.err = (
            stream.fileno() for stream in (self.agent.stdin, self.agent.stdout, self.agent.stderr)
        )
        for file in (self.into, self.out, self.err):
            os.set_blocking(file, False)
        # Interrupts of kernels are meant for user code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self):
        last = None
        while True:
            poller = zmq.Poller()
            poller.register(self.socket, zmq.POLLIN)
            if self.out is not None and self.may_send():
                poller.register(self.out, zmq.POLLIN)
            if self.err is not None:
                poller.register(self.err, zmq.POLLIN)
            if self.queue and self.into is not None:
                poller.register(self.into, zmq.POLLOUT)
            ready = dict(poller.poll(int(POLL_INTERVAL * 1000)))
            if self.socket in ready:
                self.receive()
            if self.into in ready:
                self.pass_on()
            if self.out in ready:
                self.out = self.read(self.out, self.send)
            if self.err in ready:
                self.err = self.read(self.err, self.note)
            if self.ended_by_host or getattr(self.shell, "exit_now", False):
                return self.end(True)
            if self.out is None:
                last = last or monotonic()
                if not self.unacked or monotonic() - last > LINGER_TIMEOUT:
                    return self.end(False)

    def may_send(self):
        waiting = self.sent - self.unacked[0][0] if self.unacked else 0
        return waiting < MAX_UNACKED_BYTES and len(self.unacked) < MAX_UNACKED_CHUNKS

    @staticmethod
    def read(file, take):
        try:
            piece = os.read(file, CHUNK_SIZE)
        except BlockingIOError:
            return file
        except OSError:
            piece = b""
        if not piece:
            return None
        take(piece)
        return file

    def send(self, piece):
        self.unacked.append((self.sent, piece))
        self.send_message("D", self.sent, piece)
        self.sent += len(piece)

    def note(self, piece):
        self.stderr_tail = (self.stderr_tail + piece)[-MAX_STDERR:]

    def send_message(self, kind, at, piece=None, **more):
        self.acked = self.passed
        content = dict(said="%s%s %d %d" % (PREFIX, kind, at, self.passed), **more)
        self.kernel.session.send(
            self.socket, "sandbox_link", content, self.parent, ident=self.ident, buffers=piece and [piece]
        )

    def receive(self):
        try:
            _, message = self.kernel.session.recv(self.socket)
        except ValueError:
            return  # not signed, or a copy
        value = message["content"].get("value", "") if message else ""
        if not value.startswith(PREFIX):
            return
        kind, at, taken = value[len(PREFIX) :].split(" ")
        at, taken = int(at), int(taken)
        while self.unacked and self.unacked[0][0] + len(self.unacked[0][1]) <= taken:
            self.unacked.popleft()
        if kind == "D":
            data = b"".join(bytes(piece) for piece in message.get("buffers") or ())
            if at == self.received:
                self.received += len(data)
                self.queue.append(memoryview(data))
                self.pass_on()
            elif at > self.received:
                self.send_message("S", self.received)
        elif kind == "R":
            self.send_again(at)
            self.send_message("S", self.received)
        elif kind == "S":
            self.send_again(at)
        elif kind == "E":
            self.ended_by_host = True

    def send_again(self, at):
        for begin, piece in list(self.unacked):
            if begin >= at:
                self.send_message("D", begin, piece)

    def pass_on(self):
        while self.queue and self.into is not None:
            try:
                count = os.write(self.into, self.queue[0])
            except BlockingIOError:
                break
            except OSError:
                self.into = None  # the agent ends, which its own stream shows
                break
            self.passed += count
            if count == len(self.queue[0]):
                self.queue.popleft()
            else:
                self.queue[0] = self.queue[0][count:]
        if self.into is None:
            self.queue.clear()
        if self.passed - self.acked >= MAX_UNACKED_BYTES // 8 or self.passed > self.acked and not self.queue:
            self.send_message("A", self.received)

    def end(self, for_good):
        """Ends the agent by the end of its input, and all its processes."""
        for stream in (self.agent.stdin, self.agent.stdout):
            stream.close()
        try:
            status = self.agent.wait(2)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            status = self.agent.wait()
        self.agent.stderr.close()
        end_children()
        if for_good and SETTINGS["folder"]:
            rmtree(SETTINGS["folder"], ignore_errors=True)
        self.send_message("E", self.received, status=status, words=self.stderr_tail.decode("utf-8", "replace"))


def end_children():
    for _ in range(MAX_KILL_ROUNDS):
        found = below(os.getpid())
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it has ended
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        sleep(0.01)


StdinTransport(get_ipython()).run()
