"""Times another library: from nothing to a first result, and one more result, in milliseconds.

Arguments: the library and the number of samples. Prints one line of JSON.
"""

import json
import sys
import time

WARM_RUNS = 20


def milliseconds(work):
    began = time.perf_counter()
    value = work()
    return value, (time.perf_counter() - began) * 1e3


class CodeSandboxes:
    """Runs code in the process of its caller."""

    def __init__(self):
        from code_sandboxes import Sandbox

        self.make = Sandbox.create

    def start(self):
        sandbox = self.make(variant="eval")
        sandbox.start()
        self.run(sandbox)
        return sandbox

    def run(self, sandbox):
        result = sandbox.run_code("1+1")
        if "2" not in str(result):
            raise RuntimeError("no result: %r" % (result,))

    def stop(self, sandbox):
        sandbox.stop()


class Docker(CodeSandboxes):
    """Runs code in a kernel of a Jupyter Server in a container."""

    def __init__(self):
        # What it needs for containers is optional there.
        import docker  # noqa: F401
        from code_sandboxes.remote.docker_sandbox import LocalDockerSandbox

        self.make = LocalDockerSandbox

    def start(self):
        sandbox = self.make()
        sandbox.start()
        self.run(sandbox)
        return sandbox


class Jupyter:
    """Runs code in a kernel."""

    def __init__(self):
        import ipykernel
        from jupyter_client.manager import start_new_kernel

        self.make = start_new_kernel

    def start(self):
        kernel = self.make(kernel_name="python3")
        self.run(kernel)
        return kernel

    def run(self, kernel):
        reply = kernel[1].execute_interactive("1+1", timeout=60, output_hook=lambda message: None)
        if reply["content"]["status"] != "ok":
            raise RuntimeError("no result: %r" % (reply,))

    def stop(self, kernel):
        kernel[1].stop_channels()
        kernel[0].shutdown_kernel(now=True)


def main():
    peer = {"code-sandboxes": CodeSandboxes, "docker": Docker, "jupyter": Jupyter}[sys.argv[1]]()
    # The first start pays for imports that a host pays once.
    peer.stop(peer.start())
    first, warm = [], []
    for _ in range(int(sys.argv[2])):
        started, took = milliseconds(peer.start)
        first.append(took)
        for _ in range(WARM_RUNS):
            warm.append(milliseconds(lambda: peer.run(started))[1])
        peer.stop(started)
    print()
    print(json.dumps({"first": first, "warm": warm}))


main()
