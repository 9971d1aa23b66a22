"""The main flows of the provider's client: create, exec, streams, input, tags, list, snapshot, terminate."""

import os
import sys

import modal

app = modal.App.lookup("of-the-client", create_if_missing=True)
image = modal.Image.from_registry("python:3.12-slim")
sandbox = modal.Sandbox.create(app=app, image=image, timeout=120, env={"NAME": "value"})

process = sandbox.exec("sh", "-c", "echo out; echo err >&2; echo $NAME; exit 3")
assert process.wait() == 3, process.returncode
assert process.stdout.read() == "out\nvalue\n"
assert process.stderr.read() == "err\n"

process = sandbox.exec("cat", text=False)
data = bytes(range(256)) * 1000
process.stdin.write(data)
process.stdin.write_eof()
process.stdin.drain()
assert process.stdout.read() == data
assert process.wait() == 0

process = sandbox.exec("sh", "-c", "kill -9 $$")
assert process.wait() == 137, process.returncode

sandbox.set_tags({"a": "1", "b": "2"})
assert sandbox.get_tags() == {"a": "1", "b": "2"}
found = list(modal.Sandbox.list(app_id=app.app_id, tags={"a": "1"}))
assert [one.object_id for one in found] == [sandbox.object_id], found
assert sandbox.poll() is None

again = modal.Sandbox.from_id(sandbox.object_id)
assert again.exec("echo", "again").stdout.read() == "again\n"

snapshot = sandbox.snapshot_filesystem()
assert snapshot.object_id.startswith("im-")
other = modal.Sandbox.create(app=app, image=snapshot, timeout=120)
assert other.exec("echo", "restored").stdout.read() == "restored\n"
other.terminate()

sandbox.terminate()
assert sandbox.wait(raise_on_termination=False) is None
assert sandbox.poll() == 137, sandbox.poll()
print("all is well")
sys.stdout.flush()
os._exit(0)
