"""Takes one sample with the official client of a provider for each line of standard input, and prints its milliseconds.

Arguments: the provider, and `create`, `command`, `upload` or `download`. A first line, `ready`, says that samples can be asked for.
"""

import io
import os
import sys
import time

SIZE = 100 << 20
PATH = "/tmp/large"


class Daytona:
    def __init__(self):
        from daytona import Daytona as Client

        self.client = Client()

    def create(self):
        return self.client.create()

    def command(self, sandbox):
        return sandbox.process.exec("echo hi").result

    def upload(self, sandbox, data):
        sandbox.fs.upload_file(data, PATH)

    def download(self, sandbox):
        return sandbox.fs.download_file(PATH)

    def end(self, sandbox):
        sandbox.delete()


class Modal:
    def __init__(self):
        import modal

        self.modal = modal
        self.app = modal.App.lookup("of-the-bench", create_if_missing=True)
        self.image = modal.Image.from_registry("python:3.12-slim")

    def create(self):
        return self.modal.Sandbox.create(app=self.app, image=self.image, timeout=600)

    def command(self, sandbox):
        process = sandbox.exec("sh", "-c", "echo hi")
        text = process.stdout.read()
        process.wait()
        return text

    # Its own calls for files need a program that the provider puts into a sandbox.
    def upload(self, sandbox, data):
        process = sandbox.exec("sh", "-c", "cat >" + PATH, text=False)
        for at in range(0, len(data), 1 << 20):
            process.stdin.write(data[at : at + (1 << 20)])
            process.stdin.drain()
        process.stdin.write_eof()
        process.stdin.drain()
        process.wait()

    def download(self, sandbox):
        process = sandbox.exec("cat", PATH, text=False)
        data = process.stdout.read()
        process.wait()
        return data

    def end(self, sandbox):
        sandbox.terminate()


class E2b:
    def __init__(self):
        from e2b_code_interpreter import Sandbox

        self.sandbox = Sandbox

    def create(self):
        return self.sandbox.create()

    def command(self, sandbox):
        return sandbox.commands.run("echo hi").stdout

    def upload(self, sandbox, data):
        sandbox.files.write(PATH, data)

    def download(self, sandbox):
        return sandbox.files.read(PATH, format="bytes")

    def end(self, sandbox):
        sandbox.kill()


class Cloudflare:
    """The client of the bridge in openai-agents. The bridge takes files of at most 32 MiB, so the large one is in parts."""

    PARTS = 4

    def __init__(self):
        import asyncio

        from agents.extensions.sandbox.cloudflare import CloudflareSandboxClient

        self.loop = asyncio.new_event_loop()
        self.client = CloudflareSandboxClient()

    def wait(self, work):
        return self.loop.run_until_complete(work)

    def create(self):
        from agents.extensions.sandbox.cloudflare import CloudflareSandboxClientOptions

        options = CloudflareSandboxClientOptions(worker_url=os.environ["CLOUDFLARE_SANDBOX_BASE_URL"])
        session = self.wait(self.client.create(options=options))
        self.wait(session.__aenter__())
        return session

    def command(self, session):
        return self.wait(session.exec("echo hi")).stdout.decode()

    def upload(self, session, data):
        size = len(data) // self.PARTS
        for part in range(self.PARTS):
            content = io.BytesIO(data[part * size : (part + 1) * size])
            self.wait(session.write(f"large-{part}", content))

    def download(self, session):
        return b"".join(self.wait(session.read(f"large-{part}")).read() for part in range(self.PARTS))

    def end(self, session):
        self.wait(session.__aexit__(None, None, None))
        self.wait(self.client.delete(session))


def samples(client, what):
    """Yields the milliseconds of one sample after the other."""
    if what == "create":
        while True:
            began = time.perf_counter()
            sandbox = client.create()
            said = client.command(sandbox)
            took = time.perf_counter() - began
            assert said == "hi\n", said
            client.end(sandbox)
            yield took * 1e3
    sandbox = client.create()
    data = os.urandom(1 << 20) * (SIZE >> 20)
    if what == "download":
        client.upload(sandbox, data)
    while True:
        began = time.perf_counter()
        if what == "command":
            assert client.command(sandbox) == "hi\n"
        elif what == "upload":
            client.upload(sandbox, data)
        else:
            assert len(client.download(sandbox)) == SIZE
        yield (time.perf_counter() - began) * 1e3


clients = {"daytona": Daytona, "modal": Modal, "e2b": E2b, "cloudflare": Cloudflare}
taken = samples(clients[sys.argv[1]](), sys.argv[2])
print("ready", flush=True)
for _ in sys.stdin:
    print(next(taken), flush=True)
