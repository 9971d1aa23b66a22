"""Runs jupyter_client at the other end of a pipe: one JSON request per line, one JSON answer per line.

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
    """Creates a session for one message: a session rejects a signature that it has seen before."""
    return Session(key=request["key"].encode(), signature_scheme=request["scheme"])


def unhex(texts):
    """Decodes frames from hexadecimal text."""
    return [bytes.fromhex(text) for text in texts]


def plain(message):
    """Returns a deserialized message with its dates as text."""
    parts = {name: dict(message[name]) for name in ("header", "parent_header", "metadata", "content")}
    for header in (parts["header"], parts["parent_header"]):
        if isinstance(header.get("date"), datetime):
            header["date"] = header["date"].isoformat()
    return {**parts, "buffers": [bytes(buffer).hex() for buffer in message["buffers"]]}


def sign(request):
    """Signs four frames."""
    return {"signature": session(request).sign(unhex(request["frames"])).decode()}


def verify(request):
    """Checks the signature of four frames."""
    own = session(request).sign(unhex(request["frames"]))
    return {"valid": compare_digest(own, request["signature"].encode())}


def serialize(request):
    """Converts a message to frames."""
    frames = session(request).serialize(request["message"], ident=unhex(request["identities"]))
    return {"frames": [bytes(frame).hex() for frame in frames + unhex(request["buffers"])]}


def deserialize(request):
    """Converts frames to a message, or returns the type of the error."""
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
        """Connects by a connection file, and waits until published messages arrive, which may be later than replies."""
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
        raise TimeoutError("no published message arrives")

    def run(self, request):
        """Runs code until its reply. Requests of the other client are not aborted if the code fails."""
        own = self.client.execute(request["code"], allow_stdin=False, stop_on_error=False)
        reply = self.client.get_shell_msg(timeout=TIMEOUT)
        while reply["parent_header"].get("msg_id") != own:
            reply = self.client.get_shell_msg(timeout=TIMEOUT)
        return {"id": own, "status": reply["content"]["status"]}

    def published(self, request):
        """Returns the messages published for these requests, until the kernel is idle after each."""
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
    """Answers requests until the input ends."""
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
