"""Generates the test vectors of this folder with the reference implementations.

    python make_vectors.py [--into FOLDER]  # signatures, frames, WebSocket messages, connection files
    python make_vectors.py transcripts      # conversations with every installed kernel

The former are deterministic: `cargo xtask vectors` writes them, and a test fails if they differ. The transcripts hold
the messages of kernels at the time of the recording.

Needs the packages jupyter_client and jupyter_server; the transcripts also need ipykernel and bash_kernel.
"""

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from jupyter_client import connect, manager
from jupyter_client.session import DELIM, Session
from jupyter_server.services.kernels.connection.base import (
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)

HERE = Path(__file__).parent
DATE = "2026-01-01T00:00:00.000000Z"
KEY = "a0436f6c-1916-498b-8eb9-e81ab9368e84"


def header(msg_type, **more):
    """Creates a deterministic header."""
    fixed = {"msg_id": "m1", "session": "s1", "username": "u", "date": DATE}
    return {**fixed, "msg_type": msg_type, "version": "5.5", **more}


def write(name, vectors, folder=HERE):
    """Writes one file of vectors."""
    text = json.dumps(vectors, indent=1, ensure_ascii=False)
    (folder / name).write_text(text + "\n", encoding="utf-8")


def session(key, scheme="hmac-sha256"):
    """Creates a session of the reference with this key."""
    return Session(key=key.encode(), signature_scheme=scheme)


def signatures():
    """Creates vectors of four frames and their signature."""
    request = header("kernel_info_request")
    compact = json.dumps(request, separators=(",", ":"))
    empty = ["{}", "{}", "{}", "{}"]
    unicode_frames = [compact, "{}", "{}", "{\"code\":\"print('é🐱')\"}"]
    cases = [
        ("empty objects", "secret", "hmac-sha256", empty),
        ("a request", KEY, "hmac-sha256", [compact, "{}", "{}", "{}"]),
        ("text beyond ASCII", KEY, "hmac-sha256", unicode_frames),
        ("sha384", "secret", "hmac-sha384", empty),
        ("sha512", "secret", "hmac-sha512", empty),
        ("no key", "", "hmac-sha256", empty),
        ("a long key", "k" * 300, "hmac-sha512", unicode_frames),
        ("moved borders", "secret", "hmac-sha256", ["{", "}{}", "{}", "{}"]),
    ]
    return [
        {
            "name": name,
            "key": key,
            "scheme": scheme,
            "frames": frames,
            "signature": session(key, scheme).sign([f.encode() for f in frames]).decode(),
        }
        for name, key, scheme, frames in cases
    ]


def messages():
    """Creates messages as the reference represents them."""
    parent = header("execute_request", subshell_id="sub")
    return {
        "plain": {
            "header": header("status"),
            "parent_header": {},
            "metadata": {},
            "content": {"execution_state": "busy"},
            "buffers": [],
        },
        "full": {
            "header": header("display_data", vendor={"a": [1, None]}),
            "parent_header": parent,
            "metadata": {"x": 1.5},
            "content": {"data": {"text/plain": "é🐱\u2028"}, "metadata": {}, "transient": {"display_id": "d"}},
            "buffers": [b"", bytes(range(256)), b"<IDS|MSG>"],
        },
    }


def frames():
    """Creates vectors of whole multipart messages of ZeroMQ."""
    vectors = []
    for name, message in messages().items():
        for key in (KEY, ""):
            idents = [b"client", b"\x00\xff"] if name == "full" else []
            wire = session(key).serialize(message, ident=idents) + message["buffers"]
            vectors.append(
                {
                    "name": name,
                    "key": key,
                    "frames": [frame.hex() for frame in wire],
                    "message": {k: v for k, v in message.items() if k != "buffers"},
                    "buffers": [buffer.hex() for buffer in message["buffers"]],
                    "identities": [ident.hex() for ident in idents],
                }
            )
    return vectors


def hostile():
    """Creates vectors of frames that a receiver must reject, with the verdict of the reference."""
    own = session(KEY)
    good = own.serialize(messages()["plain"])
    upper = [*good[:1], good[1].upper(), *good[2:]]
    forged = [*good[:1], b"0" * 64, *good[2:]]
    moved = [b"{", b"}{}", b"{}", b"{}"]
    cases = {
        "unsigned": [*good[:1], b"", *good[2:]],
        "wrong signature": forged,
        "short signature": [*good[:1], good[1][:62], *good[2:]],
        "altered content": [*good[:5], b"{}"],
        "no content": good[:5],
        "delimiter alone": [DELIM],
        "no delimiter": good[1:],
        "nothing": [],
        "moved borders": [DELIM, own.sign(moved), *moved],
        "header is a list": [DELIM, own.sign([b"[]", *moved[2:], b"{}"]), b"[]", b"{}", b"{}", b"{}"],
    }
    vectors = []
    for name, wire in cases.items():
        try:
            _, rest = Session(key=KEY.encode()).feed_identities(list(wire))
            Session(key=KEY.encode()).deserialize(rest)
            verdict = "accepted"
        except Exception as error:  # noqa: BLE001
            verdict = type(error).__name__
        vectors.append({"name": name, "key": KEY, "frames": [f.hex() for f in wire], "reference": verdict})
    vectors.append(
        {"name": "upper case signature", "key": KEY, "frames": [f.hex() for f in upper], "reference": "ValueError"}
    )
    return vectors


def websocket():
    """Creates vectors of messages as a Jupyter Server sends them over a WebSocket."""
    vectors = []
    for name, message in messages().items():
        texts = session("").serialize(message)[2:] + message["buffers"]
        v1 = serialize_msg_to_ws_v1(texts, "iopub")
        envelope = {**message, "channel": "iopub"}
        v0 = serialize_binary_message(envelope) if message["buffers"] else None
        text = None if message["buffers"] else json.dumps(envelope)
        vectors.append(
            {
                "name": name,
                "channel": "iopub",
                "texts": [text.decode() for text in texts[:4]],
                "buffers": [buffer.hex() for buffer in message["buffers"]],
                "v1": v1.hex(),
                "v0_binary": v0.hex() if v0 else None,
                "v0_text": text,
            }
        )
    return vectors


def connection_files():
    """Creates vectors of connection files of the reference."""
    vectors = []
    for name, options in {
        "tcp": {"ip": "127.0.0.1", "transport": "tcp"},
        "ipc": {"ip": "/run/kernel-1-ipc", "transport": "ipc"},
        "sha512": {"ip": "127.0.0.1", "signature_scheme": "hmac-sha512"},
        "named": {"ip": "::1", "kernel_name": "python3", "extra": "kept"},
    }.items():
        folder = tempfile.mkdtemp()
        path, _ = connect.write_connection_file(
            os.path.join(folder, "kernel.json"),
            shell_port=50001,
            iopub_port=50002,
            stdin_port=50003,
            hb_port=50004,
            control_port=50005,
            key=KEY.encode(),
            **options,
        )
        vectors.append({"name": name, "file": json.loads(Path(path).read_text())})
    return vectors


CODE = {
    "python3": [
        "print('out'); import sys; print('err', file=sys.stderr); 6 * 7",
        "1 / 0",
        "print(input('name: '))",
        "from IPython.display import display, HTML, clear_output\n"
        "h = display(HTML('<b>a</b>'), display_id='d1'); h.update(HTML('<b>b</b>')); clear_output(wait=True)",
        "from comm import create_comm\n"
        "c = create_comm('target', data={'a': 1}, buffers=[b'\\x00\\xff'])\n"
        "c.send({'b': 2}, buffers=[b'x']); c.close({})",
        "print?",
        "exit(keep_kernel=True)",
    ],
    "bash": ["echo out; echo err >&2", "false", "echo $((6 * 7))"],
}


def clean(text):
    """Removes names of the recording machine from a text."""
    replaced = {sys.prefix: "/env", sys.base_prefix: "/base", os.path.expanduser("~"): "/home/u"}
    replaced |= {socket.gethostname(): "host", os.environ.get("USER", "\0") or "\0": "u"}
    for secret, word in replaced.items():
        if len(secret) > 1:
            text = text.replace(json.dumps(secret)[1:-1], word)
    return text


def record(name, codes):
    """Records all messages of a kernel during a conversation, in order."""
    kernel_manager = manager.KernelManager(kernel_name=name)
    kernel_manager.start_kernel()
    client = kernel_manager.client()
    client.start_channels()
    messages = []

    def note(channel, own):
        socket_ = own.socket
        while socket_.poll(0):
            _, rest = client.session.feed_identities(socket_.recv_multipart())
            message = client.session.deserialize(list(rest))
            texts = [clean(bytes(part).decode()) for part in rest[1:5]]
            buffers = [bytes(part).hex() for part in rest[5:]]
            messages.append({"channel": channel, "texts": texts, "buffers": buffers})
            if message["msg_type"] == "input_request":
                client.input("me")

    channels = {
        "shell": client.shell_channel,
        "iopub": client.iopub_channel,
        "stdin": client.stdin_channel,
        "control": client.control_channel,
    }

    def drain(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for channel, own in channels.items():
                note(channel, own)
            time.sleep(0.01)

    drain(2.0)
    client.kernel_info()
    drain(1.0)
    for code in codes:
        client.execute(code, allow_stdin=True, user_expressions={"x": "1 + 1"} if name == "python3" else None)
        drain(1.0)
    for request in (
        lambda: client.complete("pri", 3),
        lambda: client.inspect("print", 5),
        lambda: client.history(hist_access_type="tail", n=3, output=True),
        lambda: client.is_complete("for i in x:"),
        lambda: client.comm_info(),
    ):
        request()
    drain(1.0)
    controls = ["kernel_info_request"]
    if name == "python3":
        controls += ["create_subshell_request", "list_subshell_request", "usage_request"]
    for msg_type in controls:
        client.control_channel.send(client.session.msg(msg_type, {}))
        drain(0.5)
    debug = {"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}}
    if name == "python3":
        client.control_channel.send(client.session.msg("debug_request", debug))
        drain(1.0)
    client.execute("time.sleep(" if name == "python3" else "sleep 1")
    client.execute("1" if name == "python3" else "echo")
    drain(2.0)
    client.shutdown(restart=True)
    drain(1.0)
    client.stop_channels()
    kernel_manager.shutdown_kernel(now=True)
    return messages


def main():
    """Writes the transcripts or the other vectors."""
    if sys.argv[1:] == ["transcripts"]:
        for name, codes in CODE.items():
            write(f"transcript_{name}.json", record(name, codes))
        return
    folder = Path(sys.argv[2]) if sys.argv[1:2] == ["--into"] else HERE
    for make in (signatures, frames, hostile, websocket, connection_files):
        write(f"{make.__name__}.json", make(), folder)


main()
