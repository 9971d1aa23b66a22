"""A Jupyter Server for tests. It ends when its standard input does, so that it does not outlive whoever started it."""

import os
import signal
import sys
import threading


def watch():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


threading.Thread(target=watch, daemon=True).start()

from jupyter_server.serverapp import ServerApp  # noqa: E402

ServerApp.launch_instance(sys.argv[1:])
