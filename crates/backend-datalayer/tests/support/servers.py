"""Jupyter Servers, each a fork of a process that has imported everything: that alone takes seconds of processor time.

As a program it reads what to start, a line of JSON each, and answers with the number of the process.
"""

import json
import os
import signal
import subprocess
import sys
import time


class Servers:
    """Starts servers, from a process that ends with this one."""

    def __init__(self):
        self.source = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, **asked):
        print(json.dumps(asked), file=self.source.stdin, flush=True)
        return Server(int(self.source.stdout.readline()))


class Server:
    """A process that is no child of this one."""

    def __init__(self, pid):
        self.pid = pid

    def is_alive(self):
        return os.path.exists(f"/proc/{self.pid}")

    def wait(self):
        while self.is_alive():
            time.sleep(0.005)


def serve(launch, environment, directory, log, arguments):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    streams = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    for stream, place in zip(streams + streams[1:], range(3)):
        os.dup2(stream, place)
    launch(arguments)


def main():
    # What a server imports when it is asked for the first time.
    import jupyter_client.ioloop  # noqa: F401
    import jupyter_server.gateway.managers  # noqa: F401
    import jupyter_server.services.kernels.connection.channels  # noqa: F401
    import jupyter_server.services.kernels.handlers  # noqa: F401
    from jupyter_server.serverapp import ServerApp

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            serve(ServerApp.launch_instance, **json.loads(line))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
