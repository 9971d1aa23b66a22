"""jupyter_client at the other end of a pipe: one request as JSON on each line, one answer on each line.

    python peer.py
"""

import json
import sys
from datetime import datetime
from hmac import compare_digest
from queue import Empty

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.session import Session

TIMEOUT = 60


def session(request):
    """A session of its own for each message, because each remembers the signatures that it has seen."""
    return Session(key=request["key"].encode(), signature_scheme=request["scheme"])


def unhex(texts):
    """The frames."""
    return [bytes.fromhex(text) for text in texts]


def plain(message):
    """A message as it was read, with its dates as text."""
    parts = {name: dict(message[name]) for name in ("header", "parent_header", "metadata", "content")}
    for header in (parts["header"], parts["parent_header"]):
        if isinstance(header.get("date"), datetime):
            header["date"] = header["date"].isoformat()
    return {**parts, "buffers": [bytes(buffer).hex() for buffer in message["buffers"]]}


def sign(request):
    """The signature of four texts."""
    return {"signature": session(request).sign(unhex(request["frames"])).decode()}


def verify(request):
    """Whether a signature is that of four texts."""
    own = session(request).sign(unhex(request["frames"]))
    return {"valid": compare_digest(own, request["signature"].encode())}


def serialize(request):
    """A message as frames."""
    frames = session(request).serialize(request["message"], ident=unhex(request["identities"]))
    return {"frames": [bytes(frame).hex() for frame in frames + unhex(request["buffers"])]}


def deserialize(request):
    """Frames as a message, or why they are none."""
    own = session(request)
    try:
        identities, rest = own.feed_identities(unhex(request["frames"]))
        message = own.deserialize(rest)
    except Exception as error:  # noqa: BLE001
        return {"refused": type(error).__name__}
    return {"identities": [identity.hex() for identity in identities], **plain(message)}


class Watcher:
    """A client of a kernel."""

    def __init__(self):
        self.client = BlockingKernelClient()

    def connect(self, request):
        """Connects by a connection file, and waits until what is published arrives, which may be later than replies."""
        self.client.load_connection_file(request["file"])
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)
        for _ in range(TIMEOUT):
            self.client.kernel_info()
            try:
                self.client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            return {}
        raise TimeoutError("nothing that is published arrives")

    def run(self, request):
        """Runs code to its end; its id. What the other side asks for meanwhile runs even if this fails."""
        own = self.client.execute(request["code"], allow_stdin=False, stop_on_error=False)
        reply = self.client.get_shell_msg(timeout=TIMEOUT)
        while reply["parent_header"].get("msg_id") != own:
            reply = self.client.get_shell_msg(timeout=TIMEOUT)
        return {"id": own, "status": reply["content"]["status"]}

    def published(self, request):
        """What the kernel published, until it has said as often that it is idle after one of these requests."""
        messages, idle = [], set()
        while idle != set(request["ids"]):
            try:
                message = self.client.get_iopub_msg(timeout=TIMEOUT)
            except Empty:
                break
            own = message["parent_header"].get("msg_id")
            if own not in request["ids"]:
                continue
            messages.append(plain(message))
            if message["content"].get("execution_state") == "idle":
                idle.add(own)
        return {"messages": messages}


def main():
    """Answers until there are no more requests."""
    watcher = Watcher()
    answers = {
        "sign": sign,
        "verify": verify,
        "serialize": serialize,
        "deserialize": deserialize,
        "connect": watcher.connect,
        "run": watcher.run,
        "published": watcher.published,
    }
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answers[request["do"]](request)), flush=True)


main()
