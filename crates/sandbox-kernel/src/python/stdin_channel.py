"""Carries bytes between a kernel and its host, on the stdin channel."""

import os
import threading
from collections import deque
from socket import socketpair

# The prefix of the messages.
PREFIX = load("driver")["PREFIX"]
CHUNK_SIZE = 256 << 10

stdin_peer = load("stdin_peer")["stdin_peer"]


class StdinChannel:
    """Carries bytes between this process and its host, on the stdin channel. One thread owns the socket."""

    def __init__(self, driver):
        self.driver = driver
        self.kernel = driver.kernel
        self.address()
        self.near, self.far = socketpair()
        self.far.setblocking(False)
        self.wake_end, self.waker = socketpair()
        self.wake_end.setblocking(False)
        self.inputs = deque()
        self.input = None
        self.owed = deque()
        self.to_near = bytearray()
        self.pid = os.getpid()
        self.thread = threading.Thread(target=self.pump, daemon=True, name="sandbox stdin channel")
        self.thread.start()

    def address(self):
        """Addresses further messages to the client of the current request."""
        self.ident, self.parent = stdin_peer(self.kernel)

    def feed(self, write):
        """Writes further input of the host to a descriptor. Returns a function that ends that."""
        os.set_blocking(write, False)
        done = threading.Event()
        self.inputs.append(("open", write, None))
        self.waker.send(b"x")

        def end():
            if os.getpid() != self.pid:
                return os.close(write)
            self.inputs.append(("close", write, done))
            self.waker.send(b"x")
            done.wait(5)

        return end

    def pump(self):
        import zmq

        socket = self.kernel.stdin_socket
        while True:
            poller = zmq.Poller()
            poller.register(socket, zmq.POLLIN)
            poller.register(self.wake_end.fileno(), zmq.POLLIN)
            poller.register(self.far.fileno(), zmq.POLLIN | (zmq.POLLOUT if self.to_near else 0))
            if self.input is not None and self.owed:
                poller.register(self.input, zmq.POLLOUT)
            try:
                ready = dict(poller.poll())
                if self.wake_end.fileno() in ready:
                    self.wake_end.recv(4096)
                    self.change_input()
                if ready.get(self.far.fileno(), 0) & zmq.POLLIN:
                    self.send_message("T", self.far.recv(CHUNK_SIZE))
                if socket in ready:
                    self.receive(socket)
                self.pass_on()
            except zmq.ZMQError:
                return  # the kernel ends
            except (BlockingIOError, InterruptedError):
                pass

    def send_message(self, kind, data=b""):
        kernel = self.kernel
        content, buffers = {"said": PREFIX + kind}, [data] if data else None
        kernel.session.send(
            kernel.stdin_socket, "sandbox_link", content, self.parent, ident=self.ident, buffers=buffers
        )

    def receive(self, socket):
        _, message = self.kernel.session.recv(socket)
        value = message["content"].get("value", "") if message else ""
        if not value.startswith(PREFIX):
            return
        kind, data = value[len(PREFIX) :], b"".join(bytes(piece) for piece in message.get("buffers") or ())
        if kind == "X":
            self.driver.interrupt(int(data))
        elif kind == "T":
            self.to_near += data
        elif self.input is not None:
            self.owed.append(data if kind == "I" else None)

    def change_input(self):
        while self.inputs:
            what, file, done = self.inputs.popleft()
            if what == "open":
                self.input = file
                self.owed.clear()
                self.send_message("A")
            else:
                self.end_input(file)
                done.set()

    def end_input(self, file):
        if self.input == file:
            self.input = None
            self.owed.clear()
            os.close(file)

    def pass_on(self):
        if self.to_near:
            sent = self.far.send(self.to_near)
            del self.to_near[:sent]
        while self.input is not None and self.owed:
            data = self.owed[0]
            if data is None:
                self.end_input(self.input)
                return
            try:
                written = os.write(self.input, data)
            except BlockingIOError:
                return
            except OSError:
                self.send_message("E")  # the reader is gone
                self.end_input(self.input)
                return
            if written < len(data):
                self.owed[0] = data[written:]
                return
            self.owed.popleft()
            self.send_message("A")
