"""A control plane for tests: the REST API of the runtimes and accounts services, in front of real Jupyter Servers.

    python control_plane.py [old|new|both] [SPARES]

`old` speaks the forms of the service up to version 1.1.22 alone (`environment_name`, `pod_name`, `runtime-snapshots`), `new` those
since (`environment`, `runtime_name`, `sandbox-snapshots`), and without a word it speaks both. It prints its address and its key as
JSON, and ends with its standard input. That many servers are started before anybody asks for one, so that tests wait less. What a test does to it is below `/_test`.
"""

import asyncio
import json
import logging
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

import tornado.httpclient
import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket
from runtimes import Runtime
from servers import Servers

API = "/api/runtimes/v1"
IAM = "/api/iam/v1"

ENVIRONMENTS = [
    {
        "name": "python-cpu-env", "title": "Python CPU", "description": "<p>Python</p>", "language": "python",
        "owner": "datalayer", "visibility": "public", "burning_rate": 0.00025, "dockerImage": "datalayer/python",
        "kernel": {"givenNameTemplate": "Python"}, "contents": [], "snippets": [],
        "resources": {"cpu": "1500m", "memory": "8Gi", "ephemeral-storage": "10Gi"},
    },
    {
        "name": "python-gpu-env", "title": "Python GPU", "description": "<p>CUDA</p>", "language": "python",
        "owner": "datalayer", "visibility": "public", "burning_rate": 0.01, "dockerImage": "datalayer/cuda",
        "kernel": {"givenNameTemplate": "GPU"}, "contents": [], "snippets": [],
        "resources": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"},
    },
    {
        "name": "python-small-gpu-env", "title": "Python GPU, small", "description": "<p>CUDA</p>", "language": "python",
        "owner": "datalayer", "visibility": "public", "burning_rate": 0.02, "dockerImage": "datalayer/cuda",
        "kernel": {"givenNameTemplate": "GPU"}, "contents": [], "snippets": [],
        "resources": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"},
    },
]

# What the provider's clients insist on is among it: a name in two parts, and an id beside the uid.
PROFILE = {
    "id": "01U", "uid": "01U", "handle_s": "me", "email_s": "me@example.com", "first_name_t": "First",
    "last_name_t": "Last", "type_s": "user", "origin_s": "iam", "roles_ss": [],
}


class Plane:
    """What the service knows."""

    def __init__(self, folder, dialect, spares):
        self.folder, self.dialect, self.most_spares = Path(folder), dialect, spares
        self.servers = Servers()
        self.spares = []
        self.key = "key-" + secrets.token_hex(12)
        self.tokens = {self.key}
        self.credits = 100.0
        self.runtimes, self.snapshots, self.checkpoints = {}, {}, {}
        self.faults, self.requests = [], []
        self.start_delay, self.start_fails, self.create_waits = 0.0, None, False
        # Where the ends of deletions can be seen, if there is such a place: an origin, or none for our own.
        self.operations_at = None
        self.origin = ""

    def new_runtime(self, is_plain):
        return self.spares.pop(0) if is_plain and self.spares else Runtime(self.folder, self.servers)

    async def look_after(self):
        while True:
            while len(self.spares) < self.most_spares:
                self.spares.append(Runtime(self.folder, self.servers))
                self.spares[-1].start()
            now = time.time()
            for runtime in [one for one in self.runtimes.values() if one.expired <= now]:
                await self.end(runtime)
            await asyncio.sleep(0.05)

    async def end(self, runtime):
        if self.runtimes.pop(runtime.name, None) is not None:
            self.credits -= max(0.0, time.time() - runtime.started) * runtime.environment["burning_rate"]
            runtime.drop()
            await asyncio.to_thread(runtime.end)

    async def bring_up(self, runtime, delay, fails):
        await asyncio.sleep(delay)
        if fails == "vanish":
            await self.end(runtime)
        elif fails is None and runtime.name in self.runtimes:
            await self.until_it_listens(runtime)

    async def until_it_listens(self, runtime):
        """Starts its server unless it runs, and waits until that answers, or half a minute. One whose port somebody else has
        taken ends at once, and is started with another."""
        for _ in range(600):
            if await runtime.answers() or runtime.name not in self.runtimes:
                return
            if runtime.process is None or not runtime.process.is_alive():
                runtime.start()
            await asyncio.sleep(0.05)

    def left(self):
        return self.credits - sum(one.credits for one in self.runtimes.values())

    def fault(self, method, path):
        for fault in self.faults:
            if fault["method"] == method and path.endswith(fault["path"]) and fault.get("count", 1) > 0:
                fault["count"] = fault.get("count", 1) - 1
                return fault
        return None


class Handler(tornado.web.RequestHandler):
    """What all of the API has in common: keys, faults, envelopes."""

    SUPPORTED_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

    @property
    def plane(self):
        return self.application.settings["plane"]

    async def prepare(self):
        body = self.request.body.decode() or "null"
        self.sent = json.loads(body)
        self.plane.requests.append({
            "method": self.request.method, "path": self.request.path, "body": self.sent,
            "headers": {name.lower(): value for name, value in self.request.headers.items()},
        })
        self.fault = self.plane.fault(self.request.method, self.request.path)
        if self.fault is not None:
            await asyncio.sleep(self.fault.get("delay", 0))
            if not self.fault.get("after", False):
                self.give_fault()
                return
        token = self.request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not self.request.path.endswith("/login") and token not in self.plane.tokens:
            self.refuse(401, "Invalid or expired token")

    def give_fault(self):
        fault = self.fault
        if fault.get("drop"):
            self.request.connection.stream.close()
            self._finished = True
            return
        if "status" not in fault:
            self.fault = None
            return
        self.set_status(fault["status"])
        for name, value in fault.get("headers", {}).items():
            self.set_header(name, value)
        self.finish(fault.get("text", json.dumps({"success": False, "message": "as the test wants"})))

    def answer(self, status=200, **payload):
        if self._finished:
            return
        if self.fault is not None:
            self.give_fault()
            if self._finished:
                return
        self.set_status(status)
        self.finish(None if status == 204 else {"success": True, "message": "", **payload})

    def refuse(self, status, message):
        if not self._finished:
            self.set_status(status)
            self.finish({"success": False, "message": message})

    def runtime(self, name):
        found = self.plane.runtimes.get(name)
        if found is None:
            self.refuse(404, f"Runtime {name} not found")
        return found


class Environments(Handler):
    """`GET environments`"""

    def get(self):
        self.answer(environments=ENVIRONMENTS)


class Runtimes(Handler):
    """`GET runtimes`, `POST runtimes`"""

    def get(self):
        self.answer(runtimes=[one.record(self.plane.origin) for one in self.plane.runtimes.values()])

    async def post(self):
        plane, sent = self.plane, self.sent
        old, new = sent.get("environment_name"), (sent.get("environment") or {}).get("name")
        wanted = {"old": old, "new": new}.get(plane.dialect, old or new)
        if wanted is None or sent.get("type") != "notebook" or "credits_limit" not in sent:
            self.set_status(422)
            self.finish({"detail": [{"loc": ["body", "environment"], "msg": "Field required"}]})
            return
        environment = next((one for one in ENVIRONMENTS if one["name"] == wanted), None)
        if environment is None:
            return self.refuse(404, f"Environment {wanted} not found")
        if sent["credits_limit"] > plane.left():
            return self.refuse(402, "Not enough credits")
        source = plane.snapshots.get(sent.get("from"))
        if sent.get("from") and source is None:
            return self.refuse(404, "Snapshot not found")
        folder = source and source["folder"]
        is_plain = folder is None and plane.start_delay == 0 and plane.start_fails is None
        runtime = plane.new_runtime(is_plain)
        runtime.begin(environment, sent.get("given_name"), sent["credits_limit"], folder)
        plane.runtimes[runtime.name] = runtime
        bringing_up = asyncio.ensure_future(plane.bring_up(runtime, plane.start_delay, plane.start_fails))
        if plane.create_waits:
            await bringing_up
        self.answer(201, runtime=runtime.record(plane.origin))


class One(Handler):
    """`GET runtimes/{name}`, `DELETE runtimes/{name}`"""

    def get(self, name):
        if runtime := self.runtime(name):
            self.answer(runtime=runtime.record(self.plane.origin))

    async def delete(self, name):
        if runtime := self.runtime(name):
            await self.plane.end(runtime)
            self.answer()


class Hold(Handler):
    """`POST runtimes/{name}/pause`, `POST runtimes/{name}/resume`"""

    async def post(self, name, verb):
        runtime = self.runtime(name)
        if runtime is None:
            return
        if runtime.held == (verb == "pause"):
            return self.refuse(409, f"Runtime {name} cannot {verb} now")
        checkpoint = {
            "id": secrets.token_hex(8), "name": "", "description": "", "runtime_uid": runtime.uid,
            "status": "requested", "updated_at": str(time.time()),
        }
        for other in self.plane.checkpoints.values():
            if other["runtime_uid"] == runtime.uid and other["status"] == "paused":
                other["status"] = "resumed"
        self.plane.checkpoints[checkpoint["id"]] = checkpoint
        asyncio.ensure_future(self.work(runtime, verb, checkpoint))
        self.answer(202, checkpoint_id=checkpoint["id"])

    async def work(self, runtime, verb, checkpoint):
        await asyncio.sleep(0.2)
        checkpoint["status"] = "created"
        if verb == "pause":
            runtime.held = True
            runtime.drop()
            await asyncio.to_thread(runtime.hold)
        else:
            await asyncio.to_thread(runtime.resume)
            runtime.held = False
        checkpoint["status"] = "paused" if verb == "pause" else "resumed"


class Checkpoints(Handler):
    """`GET runtime-checkpoints`"""

    def get(self):
        self.answer(checkpoints=list(self.plane.checkpoints.values()))


class Snapshots(Handler):
    """`GET ..-snapshots`, `POST ..-snapshots`"""

    def told(self, snapshot):
        return {name: value for name, value in snapshot.items() if name != "folder"}

    def get(self):
        self.answer(snapshots=[self.told(one) for one in self.plane.snapshots.values()])

    async def post(self):
        key = "pod_name" if self.request.path.endswith("runtime-snapshots") else "runtime_name"
        if key not in self.sent:
            self.set_status(422)
            self.finish({"detail": [{"loc": ["body", key], "msg": "Field required"}]})
            return
        runtime = self.runtime(self.sent[key])
        if runtime is None:
            return
        stored = asyncio.ensure_future(self.store(runtime, self.sent))
        if key == "pod_name":
            # Clients of the older form list once after the answer, and take what they find.
            await stored
        self.answer(201)

    async def store(self, runtime, sent):
        uid = "01" + secrets.token_hex(12).upper()
        folder = self.plane.folder / "snapshots" / uid
        await runtime.store(folder)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        self.plane.snapshots[uid] = {
            "uid": uid, "name": sent["name"], "description": sent["description"], "format": "pickle",
            "environment": runtime.environment["name"], "metadata": {}, "size": size, "format_version": "1",
            "status": "ready", "updated_at": "2026-01-02T03:04:05Z", "folder": folder,
        }
        if sent.get("stop"):
            await self.plane.end(runtime)


class Snapshot(Handler):
    """`GET ..-snapshots/{uid}`, `DELETE ..-snapshots/{uid}`"""

    def get(self, uid):
        found = self.plane.snapshots.get(uid)
        if found is None:
            return self.refuse(404, "Snapshot not found")
        self.answer(snapshot={name: value for name, value in found.items() if name != "folder"})

    def delete(self, uid):
        if self.plane.snapshots.pop(uid, None) is None:
            return self.refuse(404, "Snapshot not found")
        if self.plane.operations_at is not None:
            # What the provider's TypeScript client waits for.
            self.set_header("Location", self.plane.operations_at + f"{API}/operations/{uid}")
        # To clients of the older form, nothing but 204 is a success.
        self.answer(204 if "/runtime-snapshots/" in self.request.path else 202)


class Operation(Handler):
    """`GET operations/{id}`: where an answer of 202 points to. Done when it is looked at for the second time."""

    def get(self, operation):
        looks = sum(one["path"] == self.request.path for one in self.plane.requests)
        self.answer(202 if looks < 2 else 200)


class Accounts(Handler):
    """`POST login`, `GET whoami`, `GET usage/credits`"""

    def get(self, what):
        if what == "whoami":
            return self.answer(profile=PROFILE)
        reserved = [{"credits": one.credits} for one in self.plane.runtimes.values()]
        self.answer(credits={"credits": self.plane.credits, "quota": None}, reservations=reserved)

    def post(self, what):
        if self.sent.get("token") != self.plane.key:
            return self.refuse(401, "Invalid token")
        token = "token-" + secrets.token_hex(12)
        self.plane.tokens.add(token)
        self.answer(token=token)


class Test(tornado.web.RequestHandler):
    """What a test wants of the control plane, and no client of it."""

    def get(self):
        plane = self.application.settings["plane"]
        runtimes = [one.record(plane.origin) for one in plane.runtimes.values()]
        self.finish({"requests": plane.requests, "runtimes": runtimes, "credits": plane.credits})

    async def post(self):
        plane = self.application.settings["plane"]
        for what, value in json.loads(self.request.body).items():
            match what:
                case "fault":
                    plane.faults.append(value)
                case "forget_requests":
                    plane.requests.clear()
                case "expire_tokens":
                    plane.tokens.clear()
                case "drop":
                    for runtime in plane.runtimes.values():
                        runtime.drop()
                case "end_all":
                    for runtime in list(plane.runtimes.values()):
                        await plane.end(runtime)
                case "credits" | "operations_at" | "start_delay" | "start_fails" | "create_waits":
                    setattr(plane, what, value)
        self.finish({})


class Ingress(tornado.web.RequestHandler):
    """Passes requests on to the Jupyter Server of a runtime."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

    async def prepare(self):
        runtime = self.application.settings["plane"].runtimes.get(self.path_args[1])
        if runtime is None or runtime.held or runtime.process is None:
            self.set_status(404 if runtime is None else 503)
            await self.finish("the runtime is not there")
            return
        headers = self.request.headers.copy()
        body = self.request.body if self.request.method in ("POST", "PUT", "PATCH") else None
        url = f"http://127.0.0.1:{runtime.port}{self.request.uri}"
        request = tornado.httpclient.HTTPRequest(
            url, self.request.method, headers, body, request_timeout=120, follow_redirects=False,
            decompress_response=False,
        )
        try:
            answer = await tornado.httpclient.AsyncHTTPClient().fetch(request, raise_error=False)
        except OSError:
            answer = None
        if answer is None or answer.code == 599:
            self.set_status(502)
            await self.finish("the runtime does not answer")
            return
        self.set_status(answer.code, answer.reason)
        for name, value in answer.headers.get_all():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.set_header(name, value)
        # What has no content must not have an empty one either.
        await self.finish(answer.body or None)


class Channels(tornado.websocket.WebSocketHandler):
    """Passes the WebSocket of a kernel on."""

    async def prepare(self):
        runtime = self.application.settings["plane"].runtimes.get(self.path_args[1])
        if runtime is None or runtime.held or runtime.process is None:
            self.set_status(404 if runtime is None else 503)
            await self.finish("the runtime is not there")
            return
        protocols = self.request.headers.get("Sec-WebSocket-Protocol", "")
        wanted = [one.strip() for one in protocols.split(",") if one.strip()]
        headers = {name: self.request.headers[name] for name in ("Authorization", "Cookie") if name in self.request.headers}
        url = f"ws://127.0.0.1:{runtime.port}{self.request.uri}"
        request = tornado.httpclient.HTTPRequest(url, headers=headers)
        try:
            self.inner = await tornado.websocket.websocket_connect(
                request, subprotocols=wanted or None, max_message_size=1 << 30,
            )
        except (OSError, tornado.httpclient.HTTPError) as error:
            self.set_status(getattr(error, "code", 502))
            await self.finish("the runtime refuses")
            return
        self.runtime = runtime

    def select_subprotocol(self, offered):
        return self.inner.selected_subprotocol

    def check_origin(self, origin):
        return True

    def open(self, *arguments):
        self.runtime.sockets.add(self)
        self.pump = asyncio.ensure_future(self.pass_on())

    async def pass_on(self):
        while (message := await self.inner.read_message()) is not None:
            try:
                await self.write_message(message, isinstance(message, bytes))
            except tornado.websocket.WebSocketClosedError:
                return
        self.close()

    async def on_message(self, message):
        await self.inner.write_message(message, isinstance(message, bytes))

    def abort(self):
        if self.ws_connection is not None:
            self.ws_connection.stream.close()
        self.inner.close()

    def on_close(self):
        self.runtime.sockets.discard(self)
        self.inner.close()


async def main():
    dialect = sys.argv[1] if len(sys.argv) > 1 else "both"
    spares = sys.argv[2] if len(sys.argv) > 2 else "0"
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    # Whoever started it is gone when its standard input is.
    loop.add_reader(sys.stdin, lambda: sys.stdin.buffer.raw.read(4096) or over.set())
    with tempfile.TemporaryDirectory(prefix="datalayer-") as folder:
        plane = Plane(folder, dialect, int(spares))
        kind = {"old": "runtime", "new": "sandbox"}.get(dialect, "(?:runtime|sandbox)")
        pool = r"/jupyter/server/([^/]+)/([^/]+)"
        application = tornado.web.Application([
            (rf"{API}/environments", Environments),
            (rf"{API}/runtimes", Runtimes),
            (rf"{API}/runtimes/([^/]+)", One),
            (rf"{API}/runtimes/([^/]+)/(pause|resume)", Hold),
            (rf"{API}/runtime-checkpoints", Checkpoints),
            (rf"{API}/{kind}-snapshots", Snapshots),
            (rf"{API}/{kind}-snapshots/([^/]+)", Snapshot),
            (rf"{API}/operations/([^/]+)", Operation),
            (rf"{IAM}/(login|whoami|usage/credits)", Accounts),
            (pool + r"/api/kernels/[^/]+/channels", Channels),
            (pool + r"/.*", Ingress),
            (r"/_test", Test),
        ], plane=plane, websocket_max_message_size=1 << 30)
        sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
        plane.origin = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        server = tornado.httpserver.HTTPServer(application, max_buffer_size=1 << 30)
        server.add_sockets(sockets)
        print(json.dumps({"url": plane.origin, "key": plane.key}), flush=True)
        looking = asyncio.ensure_future(plane.look_after())
        await over.wait()
        looking.cancel()
        for runtime in list(plane.runtimes.values()):
            await plane.end(runtime)
        for runtime in plane.spares:
            runtime.end()


if __name__ == "__main__":
    # Refusals are what it is for.
    logging.getLogger("tornado.access").setLevel(logging.CRITICAL)
    tornado.httpclient.AsyncHTTPClient.configure(None, max_body_size=1 << 30, max_clients=1000)
    asyncio.run(main())
