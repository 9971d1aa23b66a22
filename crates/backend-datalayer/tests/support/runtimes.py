"""The runtimes of the control plane for tests: real Jupyter Servers, started, held, stored and ended.

A runtime of the service is a machine in the cloud. Here it is a folder and the processes of one Jupyter Server of this
computer, without any isolation.
"""

import asyncio
import os
import pickle
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

MARK = "DATALAYER_FAKE_RUNTIME"

# Runs in a kernel whose state is stored: whatever can be pickled.
STORE = """
def _store(path):
    import pickle
    kept = {}
    for name, value in list(get_ipython().user_ns.items()):
        if name.startswith("_") or name in ("In", "Out", "exit", "quit", "open", "get_ipython"):
            continue
        try:
            pickle.loads(pickle.dumps(value))
        except Exception:
            continue
        kept[name] = value
    with open(path, "wb") as file:
        pickle.dump(kept, file)
_store(PATH)
del _store
"""

# Runs in a kernel that starts from a stored state.
RESTORE = """
def _restore(path):
    import pickle
    with open(path, "rb") as file:
        get_ipython().user_ns.update(pickle.load(file))
_restore(PATH)
del _restore
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Runtime:
    """One runtime: a Jupyter Server with a token of its own."""

    def __init__(self, folder, servers):
        self.servers = servers
        self.uid = "01" + secrets.token_hex(12).upper()
        self.name = "runtime-" + secrets.token_hex(6)
        self.pool = "python-pool"
        self.token = secrets.token_hex(16)
        self.reservation = "01" + secrets.token_hex(12).upper()
        self.folder = Path(folder) / self.name
        self.home = self.folder / "home"
        # Sockets are in it, whose paths are short.
        self.runtime = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
        self.base = f"/jupyter/server/{self.pool}/{self.name}"
        self.port = free_port()
        self.process = None
        self.held = False
        self.sockets = set()
        self.home.mkdir(parents=True)

    def begin(self, environment, given_name, credits, source=None):
        """It is somebody's from now on."""
        self.environment, self.given_name, self.credits = environment, given_name, credits
        if source is not None:
            self._begin_from(source)
        self.started = time.time()
        self.expired = self.started + credits / environment["burning_rate"]

    def _begin_from(self, source):
        shutil.copytree(source / "home", self.home, dirs_exist_ok=True, symlinks=True)
        startup = self.folder / "ipython/profile_default/startup"
        startup.mkdir(parents=True)
        state = self.folder / "state.pickle"
        shutil.copy(source / "state.pickle", state)
        (startup / "00-state.py").write_text(RESTORE.replace("PATH", repr(str(state))))

    def start(self):
        self.port = free_port()  # somebody may have taken the last one
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin:/usr/bin:/bin"]),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "SHELL": "/bin/sh",
            "IPYTHONDIR": str(self.folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "JUPYTER_CONFIG_DIR": str(self.folder / "config"),
            "JUPYTER_DATA_DIR": str(self.folder / "data"),
            "JUPYTER_NO_CONFIG": "1",
            MARK: self.name,
        }
        options = {
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "ServerApp.base_url": self.base + "/",
            "ServerApp.root_dir": self.home,
            "ServerApp.allow_root": True,
            "ServerApp.allow_remote_access": True,
            "ServerApp.open_browser": False,
            "IdentityProvider.token": self.token,
            # On one host with many others, somebody takes a port between its choice and its use.
            "KernelManager.transport": "ipc",
            "ZMQChannelsWebsocketConnection.limit_rate": False,
        }
        self.process = self.servers.start(
            environment=environment, directory=str(self.home), log=str(self.folder / "log"),
            arguments=[f"--{name}={value}" for name, value in options.items()],
        )

    async def answers(self):
        """Whether it is its own server that answers at its port."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(f"GET {self.base}/api HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            status = await asyncio.wait_for(reader.readline(), 5)
            writer.close()
            return b" 200 " in status
        except (OSError, asyncio.TimeoutError):
            return False

    def processes(self):
        """Every process that has the mark of this runtime, or a parent that has."""
        mark = f"{MARK}={self.name}".encode()
        parents, marked = {}, set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    marked.add(int(entry.name))
            except (OSError, ValueError):
                continue
        if self.process is not None and self.process.is_alive():
            marked.add(self.process.pid)
        grown = True
        while grown:
            more = {child for child, parent in parents.items() if parent in marked} - marked
            grown = bool(more)
            marked |= more
        return marked

    def signal(self, number):
        for process in self.processes():
            try:
                os.kill(process, number)
            except OSError:
                pass

    def hold(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def drop(self):
        """Closes every WebSocket, as a gateway that is restarted does."""
        for one in list(self.sockets):
            one.abort()

    def end(self):
        for _ in range(3):
            self.signal(signal.SIGKILL)
            if not self.processes():
                break
            time.sleep(0.02)
        if self.process is not None:
            self.process.wait()
        for folder in (self.folder, self.runtime):
            shutil.rmtree(folder, ignore_errors=True)

    async def store(self, target):
        """Copies files, and the state of the kernel that was used last."""
        from jupyter_client.asynchronous import AsyncKernelClient

        target.mkdir(parents=True)
        state = target / "state.pickle"
        state.write_bytes(pickle.dumps({}))
        connections = sorted(self.runtime.glob("kernel-*.json"), key=os.path.getmtime)
        for connection in connections[:1]:
            client = AsyncKernelClient()
            client.load_connection_file(str(connection))
            client.start_channels()
            try:
                await client.wait_for_ready(timeout=20)
                code = STORE.replace("PATH", repr(str(state)))
                sent = client.execute(code, silent=True, store_history=False)
                # Answers come late to the questions with which a busy kernel was waited for.
                while (await client.get_shell_msg(timeout=20))["parent_header"].get("msg_id") != sent:
                    pass
            finally:
                client.stop_channels()
        await asyncio.to_thread(shutil.copytree, self.home, target / "home", symlinks=True)

    def record(self, origin):
        """As the service tells it, in the words of its older and of its newer versions."""
        return {
            "pod_name": self.name,
            "runtime_name": self.name,
            "uid": self.uid,
            "given_name": self.given_name,
            "environment_name": self.environment["name"],
            "environment": {"name": self.environment["name"]},
            "environment_title": self.environment["title"],
            "type": "notebook",
            "ingress": origin + self.base,
            "token": self.token,
            "burning_rate": self.environment["burning_rate"],
            "reservation_id": self.reservation,
            "started_at": str(self.started),
            "expired_at": str(self.expired),
        }
