"""Takes one sample of something else for each line of standard input, and prints its milliseconds.

Arguments: what to sample, and what that needs. A first line, `ready`, says that samples can be asked for.
"""

import contextlib
import hashlib
import hmac
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import datetime, timezone

SEPARATOR = b"<IDS|MSG>"


class Kernel:
    """A kernel that runs, spoken to by sockets of libzmq that block, and nothing else."""

    def __init__(self, file):
        import zmq

        with open(file) as text:
            told = json.load(text)
        self.key = told["key"].encode()
        self.session = uuid.uuid4().hex
        context = zmq.Context.instance()
        # Tries again at once to connect with a kernel that is not there yet.
        context.setsockopt(zmq.RECONNECT_IVL, 10)
        self.shell, self.iopub = context.socket(zmq.DEALER), context.socket(zmq.SUB)
        self.iopub.setsockopt(zmq.SUBSCRIBE, b"")
        separator = "-" if told["transport"] == "ipc" else ":"
        for socket, port in ((self.shell, told["shell_port"]), (self.iopub, told["iopub_port"])):
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect("%s://%s%s%s" % (told["transport"], told["ip"], separator, port))

    def send(self, kind, content):
        header = {
            "msg_id": uuid.uuid4().hex, "session": self.session, "username": "", "msg_type": kind, "version": "5.3",
            "date": datetime.now(timezone.utc).isoformat(),
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        digest = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        self.shell.send_multipart([SEPARATOR, digest.hexdigest().encode(), *parts])
        return header["msg_id"]

    def read(self, socket):
        frames = socket.recv_multipart()
        frames = frames[frames.index(SEPARATOR) + 1:]
        digest = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in frames[1:5]:
            digest.update(part)
        if digest.hexdigest().encode() != frames[0]:
            raise RuntimeError("a wrong signature")
        header, parent, _, content = (json.loads(part) for part in frames[1:5])
        return header["msg_type"], parent.get("msg_id"), content

    def wait_until_ready(self):
        """Until it answers, and what it publishes is heard."""
        is_heard = False
        while not is_heard:
            self.send("kernel_info_request", {})
            self.read(self.shell)
            is_heard = self.iopub.poll(10)

    def sample(self):
        request = self.send("execute_request", {
            "code": "1+1", "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False,
            "stop_on_error": True,
        })
        result = None
        while True:
            kind, parent, content = self.read(self.iopub)
            if parent != request:
                continue
            if kind == "execute_result":
                result = content["data"]["text/plain"]
            if kind == "status" and content["execution_state"] == "idle":
                break
        while self.read(self.shell)[1] != request:
            pass
        if result != "2":
            raise RuntimeError("no result: %r" % (result,))

    def close(self):
        self.shell.close()
        self.iopub.close()


@contextlib.contextmanager
def started():
    """A kernel of this interpreter, which answers. It ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "kernel.json")
        names = ("shell", "iopub", "stdin", "control", "hb")
        told = {"%s_port" % name: number for number, name in enumerate(names, 1)}
        told.update(
            transport="ipc", ip=os.path.join(folder, "k"), key=uuid.uuid4().hex,
            signature_scheme="hmac-sha256", kernel_name="python3",
        )
        with open(file, "w") as text:
            json.dump(told, text)
        process = subprocess.Popen(
            [sys.executable, "-m", "ipykernel_launcher", "-f", file],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        try:
            kernel = Kernel(file)
            kernel.wait_until_ready()
            yield kernel
            kernel.close()
        finally:
            process.kill()
            process.wait()


class Start:
    """From nothing to a first result of a kernel."""

    def sample(self):
        with started() as kernel:
            kernel.sample()
            return time.perf_counter()


class Own:
    """A run in a kernel of its own."""

    def __init__(self):
        # Leaves the block with this process.
        self.block = started()
        self.sample = self.block.__enter__().sample


class Client:
    """A kernel that runs, through jupyter_client."""

    def __init__(self, file):
        from jupyter_client import BlockingKernelClient

        self.client = BlockingKernelClient(connection_file=file)
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def sample(self):
        reply = self.client.execute_interactive("1+1", timeout=60, output_hook=lambda message: None)
        if reply["content"]["status"] != "ok":
            raise RuntimeError("no result: %r" % (reply,))


class Server:
    """A Jupyter Server, through the Python library before this one."""

    def __init__(self, url, token):
        from code_sandboxes.remote.jupyter_sandbox import LocalJupyterSandbox

        self.sandbox = LocalJupyterSandbox(server_url=url, token=token)
        self.sandbox.start()

    def sample(self):
        result = self.sandbox.run_code("print(1+1)")
        if result.stdout.strip() != "2":
            raise RuntimeError("no result: %r" % (result,))


class E2B:
    """Calls of the official SDK, of a server at that address with that key."""

    LARGE = 100 << 20

    def __init__(self, call, url, key):
        from e2b_code_interpreter import Sandbox

        self.create_with = dict(api_key=key, api_url=url, sandbox_url=url)
        self.type = Sandbox
        self.sample = getattr(self, call)
        if call == "create":
            return
        # Ends with this process, or soon after it.
        self.sandbox = Sandbox.create(timeout=600, **self.create_with)
        if call == "upload":
            self.content = bytes(self.LARGE)
        if call == "download":
            self.sandbox.files.write("large", bytes(self.LARGE))

    def create(self):
        sandbox = self.type.create(timeout=600, **self.create_with)
        self.check(sandbox.run_code("1+1").text, "2")
        ended = time.perf_counter()
        sandbox.kill()
        time.sleep(0.01)
        return ended

    def run(self):
        self.check(self.sandbox.run_code("1+1").text, "2")

    def command(self):
        self.check(self.sandbox.commands.run("true").exit_code, 0)

    def upload(self):
        self.sandbox.files.write("large", self.content)

    def download(self):
        count = sum(len(piece) for piece in self.sandbox.files.read("large", format="stream"))
        self.check(count, self.LARGE)

    @staticmethod
    def check(found, expected):
        if found != expected:
            raise RuntimeError("expected %r, found %r" % (expected, found))


def main():
    # Output of a library is not for the reader of results.
    answers, sys.stdout = sys.stdout, sys.stderr
    kinds = {"kernel": Kernel, "start": Start, "own": Own, "client": Client, "server": Server, "e2b": E2B}
    sampled = kinds[sys.argv[1]](*sys.argv[2:])
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        ended = sampled.sample() or time.perf_counter()
        print((ended - began) * 1e3, file=answers, flush=True)


main()
