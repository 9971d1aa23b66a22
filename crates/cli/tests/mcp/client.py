"""Drives the MCP server with the official client for Python: `client.py PROGRAM CASE`.

Each case is a session, or several. It prints nothing when everything is as it should be, and fails with an assertion
otherwise. Cases whose need is not there print `skipped: REASON`.
"""

import asyncio
import base64
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
import zipfile

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

# What an older revision has is used on purpose.
warnings.simplefilter("ignore")

PROGRAM = sys.argv[1]

ALL_TOOLS = [
    "run_code", "run_command", "start_command", "read_output", "write_stdin", "stop_command", "read_file", "write_file",
    "edit_file", "list_files", "find_files", "install_packages", "expose_port", "create_sandbox", "list_sandboxes",
    "stop_sandbox", "snapshot", "restore",
]


def client(*flags, env=None, **options):
    """A session with a server of its own, over standard input and output."""
    env = {**os.environ, **(env or {})}
    command = StdioServerParameters(command=PROGRAM, args=["mcp", *flags], env=env)
    return Client(command, **options)


def text(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


async def call(session, tool, **arguments):
    """Calls a tool that has to succeed. Returns its answer as data."""
    result = await session.call_tool(tool, arguments)
    assert not result.is_error, (tool, arguments, text(result))
    assert result.structured_content is not None and text(result), (tool, result)
    return result.structured_content


async def refused(session, tool, **arguments):
    """Calls a tool that has to refuse. Returns what it says."""
    result = await session.call_tool(tool, arguments)
    assert result.is_error, (tool, arguments, text(result))
    return text(result)


async def every_tool(session):
    """Calls each tool, as an agent would."""
    tools = (await session.list_tools()).tools
    names = [tool.name for tool in tools]
    assert names == ALL_TOOLS, names
    for tool in tools:
        assert tool.description and tool.input_schema and tool.output_schema and tool.title, tool.name
        assert tool.annotations.read_only_hint is not None and tool.annotations.destructive_hint is not None

    answer = await call(session, "run_code", code="x = 20\nprint('hello')\nx * 2 + 2")
    assert (answer["result"], answer["stdout"], answer["success"]) == ("42", "hello\n", True), answer
    answer = await call(session, "run_code", code="x")
    assert answer["result"] == "20", "variables stay"
    answer = await call(session, "run_code", code="x = 1", context="other")
    assert (await call(session, "run_code", code="x"))["result"] == "20", "contexts are apart"
    answer = await call(session, "run_code", code="echo $((6 * 7))", language="bash")
    assert answer["stdout"] == "42\n", answer

    answer = await call(session, "run_command", command="echo out; echo err >&2; exit 3")
    assert (answer["exit_code"], answer["stdout"], answer["stderr"]) == (3, "out\n", "err\n"), answer
    answer = await call(session, "run_command", command="cat; pwd; echo $WORD", stdin="in ", cwd="/tmp", env={"WORD": "w"})
    assert answer["stdout"] == "in /tmp\nw\n", answer

    started = await call(session, "start_command", command="while read line; do echo \"got $line\"; done")
    assert started["running"], started
    written = await call(session, "write_stdin", id=started["id"], text="one\n")
    answer = await call(session, "read_output", id=started["id"], cursor=written["cursor"], wait=10)
    assert answer["output"] == "got one\n" and answer["running"], answer
    await call(session, "write_stdin", id=started["id"], text="two\n", close=True)
    answer = await call(session, "read_output", id=started["id"], cursor=answer["cursor"], wait=10, until_end=True)
    assert answer["output"] == "got two\n" and answer["exit_code"] == 0 and not answer["running"], answer
    started = await call(session, "start_command", command="sleep 600")
    answer = await call(session, "stop_command", id=started["id"])
    assert answer["exit_code"] == 143 and not answer["running"], answer

    answer = await call(session, "write_file", path="notes/a.txt", content="one\ntwo\nthree\n")
    assert answer["bytes"] == 14, answer
    answer = await call(session, "read_file", path="notes/a.txt", line=2, lines=1)
    assert (answer["content"], answer["first_line"], answer["last_line"], answer["more"]) == ("two\n", 2, 2, True), answer
    answer = await call(session, "edit_file", path="notes/a.txt", old_text="two", new_text="2")
    assert (answer["replaced"], answer["line"]) == (1, 2), answer
    assert (await call(session, "read_file", path="notes/a.txt"))["content"] == "one\n2\nthree\n"
    answer = await call(session, "list_files", path="notes")
    assert [entry["path"].rsplit("/", 1)[1] for entry in answer["entries"]] == ["a.txt"], answer
    answer = await call(session, "find_files", contains="three")
    assert answer["found"][0]["line"] == 3 and answer["found"][0]["path"].endswith("notes/a.txt"), answer
    answer = await call(session, "find_files", name="*.txt")
    assert len(answer["found"]) == 1, answer
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
    await call(session, "write_file", path="p.png", content=picture, encoding="base64")
    result = await session.call_tool("read_file", {"path": "p.png"})
    assert [block.type for block in result.content] == ["text", "image"] and result.content[1].data == picture, result

    await call(session, "start_command", command="python3 -m http.server 8123")
    exposed = await call(session, "expose_port", port=8123)
    assert "a.txt" in page(exposed, "/notes/"), exposed

    await call(session, "snapshot", name=f"mcp-test-{os.getpid()}")
    await call(session, "run_command", command="rm -r notes")
    await call(session, "restore", name=f"mcp-test-{os.getpid()}")
    await call(session, "read_file", path="notes/a.txt")

    made = await call(session, "create_sandbox", name="second", env={"COLOUR": "blue"})
    answer = await call(session, "run_command", command="echo $COLOUR; ls", sandbox=made["sandbox"])
    assert answer["stdout"] == "blue\n", answer
    listed = await call(session, "list_sandboxes")
    assert sorted(one["session"] for one in listed["sandboxes"]) == [False, True], listed
    await call(session, "stop_sandbox", sandbox="second")
    message = await refused(session, "run_command", command="true", sandbox=made["sandbox"])
    assert "no sandbox" in message, message
    await call(session, "stop_sandbox")
    answer = await call(session, "run_code", code="'x' in globals()")
    assert answer["result"] == "False", "a new sandbox is empty"
    subprocess.run([PROGRAM, "snapshot", "rm", f"mcp-test-{os.getpid()}"], check=False, capture_output=True)


def page(exposed, path):
    """Reads a page of a server in a sandbox, which may still be starting."""
    request = urllib.request.Request(exposed["url"].rstrip("/") + path, headers=exposed["headers"])
    for _ in range(100):
        try:
            return urllib.request.urlopen(request, timeout=10).read().decode()
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{exposed} does not answer")


async def tools():
    async with client() as session:
        assert session.protocol_version == "2026-07-28", session.protocol_version
        await every_tool(session)


async def legacy_tools():
    async with client(mode="legacy") as session:
        assert session.protocol_version == "2025-11-25", session.protocol_version
        assert "isolated sandbox" in session.instructions
        await every_tool(session)


async def packages():
    """A package is installed without a network of the sandbox; one that does not exist is an answer."""
    with tempfile.TemporaryDirectory() as folder:
        info = "tinya-1.0.dist-info/"
        with zipfile.ZipFile(os.path.join(folder, "tinya-1.0-py3-none-any.whl"), "w") as wheel:
            wheel.writestr("tinya.py", "VERSION = '1.0'\n")
            wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: tinya\nVersion: 1.0\n")
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(info + "RECORD", "")
        async with client("--network", "none", env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folder}) as session:
            assert "no network" in session.instructions
            assert (await call(session, "install_packages", packages=["tinya"]))["installed"] == ["tinya"]
            assert (await call(session, "run_code", code="import tinya\ntinya.VERSION"))["result"] == "'1.0'"
            assert "tinyb" in await refused(session, "install_packages", packages=["tinyb"])
            assert "packages" in await refused(session, "install_packages", packages=[])


async def analysis():
    """A session as an agent has one: a table is analysed and plotted, an error is corrected, a page is served."""
    if subprocess.run([sys.executable, "-c", "import pandas, matplotlib"], capture_output=True).returncode:
        print("skipped: no pandas")
        return
    async with client(env={"CODE_SANDBOXES_PYTHON": sys.executable}) as session:
        rows = "".join(f"{month},{amount}\n" for month, amount in [("jan", 3), ("feb", 5), ("jan", 4)])
        await call(session, "write_file", path="sales.csv", content="month,amount\n" + rows)
        answer = await call(session, "run_code", code="import pandas as pd\nframe = pd.read_csv('sales.csv')\nframe")
        assert answer["result"].splitlines()[2] == "| 0 | jan | 3 |", answer["result"]
        result = await session.call_tool("run_code", {"code": "frame.groupby('mnth')['amount'].sum()"})
        assert result.is_error and "KeyError" in text(result) and "mnth" in text(result), text(result)
        code = "sums = frame.groupby('month')['amount'].sum()\nsums.plot(kind='bar')\nsums['jan']"
        result = await session.call_tool("run_code", {"code": code})
        assert not result.is_error, text(result)
        assert result.structured_content["result"] == "7" or "7" in text(result), text(result)
        images = [block for block in result.content if block.type == "image"]
        assert len(images) == 1 and images[0].mime_type == "image/png", result.structured_content
        assert base64.b64decode(images[0].data).startswith(b"\x89PNG")
        await call(session, "run_code", code="open('index.html', 'w').write(sums.to_frame().to_html())")
        await call(session, "start_command", command="python3 -m http.server 8123")
        exposed = await call(session, "expose_port", port=8123)
        assert "<td>7</td>" in page(exposed, "/index.html")


async def errors():
    """Wrong calls are answers that a model can act on, and the session goes on."""
    async with client("--max-sandboxes", "2", "--memory", "512m", "--lifetime", "600") as session:
        result = await session.call_tool("run_code", {"code": "def f():\n    return 1 / 0\nf()"})
        assert result.is_error and text(result).endswith("ZeroDivisionError: division by zero"), text(result)
        assert result.structured_content["error"]["name"] == "ZeroDivisionError"
        for arguments, part in [
            ({}, "missing field `code`"),
            ({"code": 1}, "`code` is wrong: invalid type: integer"),
            ({"code": "1", "tiemout": 3}, "unknown field `tiemout`"),
            ({"code": "1", "timeout": -1}, "timeout"),
            ({"code": "1", "language": "cobol"}, "`language` is wrong"),
            ({"code": "1", "sandbox": "nowhere"}, "no sandbox"),
            ({"code": "1", "language": "bash", "context": "x"}, "context"),
        ]:
            message = await refused(session, "run_code", **arguments)
            assert part in message, (arguments, message)
        try:
            await session.call_tool("no_such_tool", {})
        except Exception as error:
            assert "run_code" in str(error), error
        else:
            raise AssertionError("an unknown tool is called")
        message = await refused(session, "run_code", code="import time\nwhile True: time.sleep(0.1)", timeout=0.5)
        assert "start_command" in message, message
        message = await refused(session, "read_file", path="/no/such/file")
        assert "not_found" in message, message
        await call(session, "write_file", path="a", content="b  c\nb  c\n")
        assert "2 times" in await refused(session, "edit_file", path="a", old_text="b  c", new_text="")
        assert "other spaces" in await refused(session, "edit_file", path="a", old_text="b c", new_text="")
        await call(session, "write_file", path="binary", content=base64.b64encode(bytes(range(256))).decode(), encoding="base64")
        assert "base64" in await refused(session, "read_file", path="binary")
        answer = await call(session, "read_file", path="binary", encoding="base64")
        assert base64.b64decode(answer["content"]) == bytes(range(256))
        answer = await call(session, "run_command", command="printf '\\377ok'")
        assert answer["stdout"] == "\ufffdok", answer
        assert "512" in await refused(session, "create_sandbox", memory="1g")
        assert "lifetime" in await refused(session, "create_sandbox", lifetime=3600)
        assert "network" in await refused(session, "create_sandbox", network=["pypi.org"])
        await call(session, "create_sandbox", memory="128m", lifetime=60, network=[])
        assert "2 sandboxes" in await refused(session, "create_sandbox")
        assert "no snapshot" in await refused(session, "restore", name="no-such-snapshot")
        large = await session.call_tool("run_command", {"command": "wc -c", "stdin": "x" * 5_000_000})
        assert "5000000" in text(large), text(large)[:200]
        assert (await call(session, "run_code", code="6 * 7"))["result"] == "42"


async def output():
    """Long output is cut, says so, and can be read."""
    async with client() as session:
        answer = await call(session, "run_code", code="for n in range(20000): print('line', n)")
        assert len(answer["stdout"]) < 30_000 and "left out here" in answer["stdout"], len(answer["stdout"])
        assert answer["stdout"].startswith("line 0\n") and answer["stdout"].endswith("line 19999\n")
        whole, cursor = "", 0
        while True:
            piece = await call(session, "read_output", id=answer["output_id"], cursor=cursor)
            whole, cursor = whole + piece["output"], piece["cursor"]
            if not piece["more"]:
                break
        assert whole == "".join(f"line {n}\n" for n in range(20000)), len(whole)
        answer = await call(session, "run_command", command="seq 100000")
        assert "output_id" in answer and "left out here" in answer["stdout"]
        code = "from builtins import *\nclass Big:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(3 << 20)\nBig()"
        result = await session.call_tool("run_code", {"code": code})
        saved = result.structured_content["saved_files"]
        assert len(saved) == 1 and result.structured_content["images"] == 0, result.structured_content
        links = [block for block in result.content if block.type == "resource_link"]
        answer = await call(session, "run_command", command=f"stat -c %s {saved[0]}")
        assert answer["stdout"] == f"{(3 << 20) + 8}\n", answer
        contents = (await session.read_resource(links[0].uri)).contents
        assert contents[0].mime_type == "image/png" and len(contents[0].blob) > 4 << 20


async def progress_and_cancel():
    """Output arrives while code runs; a call that is cancelled stops the code and keeps its variables."""
    async with client() as session:
        heard = []

        async def progress(progress, total, message):
            heard.append(message)

        code = "import time\nfor n in range(4):\n    print('step', n, flush=True)\n    time.sleep(0.3)"
        await session.call_tool("run_code", {"code": code}, progress_callback=progress)
        assert any("step 0" in message for message in heard), heard
        assert any("step 2" in message for message in heard), heard
        await call(session, "run_code", code="x = 1")
        code = "import time\nopen('began', 'w').close()\ntry:\n    time.sleep(600)\nfinally:\n    open('stopped', 'w').close()"
        with anyio.move_on_after(2):
            await session.call_tool("run_code", {"code": code})
            raise AssertionError("it was not cancelled")
        started = time.monotonic()
        answer = await call(session, "run_code", code="import os\nx, os.path.exists('began'), os.path.exists('stopped')")
        assert answer["result"] == "(1, True, True)", answer
        assert time.monotonic() - started < 10
        with anyio.move_on_after(1):
            await session.call_tool("run_command", {"command": "sleep 4321"})
        await anyio.sleep(0.5)
        code = "import glob\n[path for path in glob.glob('/proc/[0-9]*/cmdline') if b'4321' in open(path, 'rb').read()]"
        assert (await call(session, "run_code", code=code))["result"] == "[]", "the command still runs"


async def choices():
    """What is offered follows from the flags."""
    async with client("--tools", "run_code,read_file") as session:
        assert [tool.name for tool in (await session.list_tools()).tools] == ["run_code", "read_file"]
        try:
            await session.call_tool("run_command", {"command": "true"})
        except Exception as error:
            assert "no tool" in str(error), error
        else:
            raise AssertionError("a tool that is not offered is called")
    async with client("--read-only") as session:
        tools = (await session.list_tools()).tools
        assert all(tool.annotations.read_only_hint for tool in tools) and len(tools) == 5, tools
    for flags, part in [
        (["--tools", "nothing"], "there are run_code"),
        (["--memory", "1k"], "memory"),
        (["--http", "0.0.0.0:0", "--no-key"], "key"),
        (["--tools-from", "/no/such/file"], "cannot be read"),
    ]:
        done = subprocess.run([PROGRAM, "mcp", *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        assert done.returncode and part in done.stderr and not done.stdout, (flags, done)


async def confirm():
    """The user is asked before a call that destroys something."""
    for mode in ("auto", "legacy"):
        asked = []

        async def elicit(context, params):
            asked.append(params.message)
            if len(asked) == 1:
                return ElicitResult(action="decline")
            return ElicitResult(action="accept", content={"confirm": len(asked) > 2})

        async with client("--confirm", mode=mode, elicitation_callback=elicit) as session:
            await call(session, "write_file", path="a", content="b")
            assert not asked, asked
            for _ in range(2):
                assert "did not allow" in await refused(session, "stop_sandbox")
            await call(session, "read_file", path="a")
            await call(session, "stop_sandbox")
            assert len(asked) == 3 and "lost" in asked[0], asked
            assert "not_found" in await refused(session, "read_file", path="a")
        async with client("--confirm", mode=mode) as session:
            assert "cannot ask" in await refused(session, "expose_port", port=8000)


async def resources():
    """Files of the sandbox are resources, and changes are reported."""
    updates = []

    async def heard(message):
        if type(message).__name__ == "ResourceUpdatedNotification":
            updates.append(message.params.uri)

    async with client(mode="legacy", message_handler=heard) as session:
        assert (await session.list_resources()).resources == []
        await call(session, "write_file", path="a b.csv", content="x,y\n")
        listed = (await session.list_resources()).resources
        assert [one.name for one in listed] == ["a b.csv"] and listed[0].mime_type == "text/csv", listed
        assert (await session.read_resource(listed[0].uri)).contents[0].text == "x,y\n"
        templates = (await session.list_resource_templates()).resource_templates
        assert templates[0].uri_template == "sandbox://{sandbox}/{+path}", templates
        await session.subscribe_resource(listed[0].uri)
        await call(session, "write_file", path="a b.csv", content="x,y\n1,2\n")
        for _ in range(100):
            if updates:
                break
            await anyio.sleep(0.1)
        assert str(updates[0]) == str(listed[0].uri), updates
        for wrong in ("sandbox://nowhere/x", "file:///etc/passwd", str(listed[0].uri) + ".no"):
            try:
                await session.read_resource(wrong)
            except MCPError as error:
                assert (error.error.code, error.error.data) == (-32002, {"uri": wrong}), error.error
                continue
            raise AssertionError(f"{wrong} was read")


    async with client() as session:
        await call(session, "write_file", path="c.txt", content="1")
        uri = str((await session.list_resources()).resources[0].uri)
        for wrong in ("sandbox://nowhere/x", uri + ".no"):
            try:
                await session.read_resource(wrong)
            except MCPError as error:
                assert (error.error.code, error.error.data) == (-32602, {"uri": wrong}), error.error
                continue
            raise AssertionError(f"{wrong} was read")
        async with session.listen(resource_subscriptions=[uri]) as events:
            await call(session, "write_file", path="c.txt", content="2")
            with anyio.fail_after(10):
                async for event in events:
                    assert event.uri == uri, event
                    break


async def keep():
    """A sandbox that is kept is found by the next session."""
    name = f"mcp-test-{os.getpid()}"
    flags = ("--keep", "--name", name, "--lifetime", "120")
    try:
        async with client(*flags) as session:
            await call(session, "run_code", code="x = 5\nopen('kept', 'w').close()")
        async with client(*flags) as session:
            answer = await call(session, "run_code", code="import os\nx, os.path.exists('kept')")
            assert answer["result"] == "(5, True)", answer
            await call(session, "stop_sandbox")
    finally:
        subprocess.run([PROGRAM, "rm", name], capture_output=True)


def serve(*flags):
    """Starts a server over HTTP. Returns the process, the address and the key."""
    command = [PROGRAM, "mcp", "--http", "127.0.0.1:0", "--json", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    served = json.loads(process.stdout.readline())
    return process, served["url"], served["key"]


def over_http(url, key, **options):
    headers = {"Authorization": f"Bearer {key}"}
    transport = streamable_http_client(url, http_client=httpx2.AsyncClient(headers=headers, timeout=60))
    return Client(transport, **options)


async def http():
    """Sessions over HTTP are apart; requests without a session name their sandbox; a key is needed."""
    process, url, key = serve("--max-sandboxes", "8")
    try:
        async with over_http(url, key, mode="legacy") as one, over_http(url, key, mode="legacy") as two:
            await call(one, "run_code", code="x = 1")
            answer = await call(two, "run_code", code="'x' in globals()")
            assert answer["result"] == "False", "sessions are apart"
            assert (await call(one, "run_code", code="x"))["result"] == "1"
            assert len((await call(one, "list_sandboxes"))["sandboxes"]) == 1
        async with over_http(url, key) as session:
            assert session.protocol_version == "2026-07-28", session.protocol_version
            assert "create_sandbox" in await refused(session, "run_code", code="1")
            made = await call(session, "create_sandbox")
            await call(session, "run_code", code="y = 3", sandbox=made["sandbox"])
        async with over_http(url, key) as session:
            answer = await call(session, "run_code", code="y", sandbox=made["sandbox"])
            assert answer["result"] == "3", "the sandbox is still there"
            await call(session, "stop_sandbox", sandbox=made["sandbox"])
            for _ in range(100):
                listed = (await call(session, "list_sandboxes"))["sandboxes"]
                if not listed:
                    break
                await anyio.sleep(0.1)
            assert listed == [], "sandboxes end with their sessions"
        for headers, status in [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": f"Bearer {key}", "Origin": "https://evil.example"}, 403),
            ({"Authorization": f"Bearer {key}", "Host": "evil.example"}, 403),
        ]:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            headers = {"Accept": "application/json, text/event-stream", **headers}
            async with httpx2.AsyncClient() as plain:
                answer = await plain.post(url, json=body, headers=headers)
            assert answer.status_code == status, (headers, answer.status_code)
        stopped = {}

        async def vanish():
            async with over_http(url, key, mode="legacy") as session:
                await session.call_tool("run_code", {"code": "import time\ntime.sleep(600)"})

        with anyio.move_on_after(3):
            await vanish()
        process.terminate()
        assert process.wait(timeout=20) == 143, process.returncode
    finally:
        process.kill()
        process.wait()


class Raw:
    """A session without a client: lines of JSON to a server of its own, and its answers."""

    def __init__(self, *flags):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([PROGRAM, "mcp", *flags], **streams)
        self.last = 0

    def begin(self, version="2025-11-25"):
        about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = self.ask("initialize", about)
        self.send({"method": "notifications/initialized"})
        return answer

    def line(self, line):
        self.process.stdin.write(line + b"\n")

    def send(self, message):
        self.line(json.dumps({"jsonrpc": "2.0", **message}).encode())
        self.process.stdin.flush()

    def request(self, method, params):
        self.last += 1
        self.send({"id": self.last, "method": method, "params": params})
        return self.last

    def answer(self, number):
        """The answer to a request; others and notices are left out."""
        while True:
            line = self.process.stdout.readline()
            assert line, "the server has ended"
            answer = json.loads(line)
            if answer.get("id") == number:
                return answer

    def ask(self, method, params):
        return self.answer(self.request(method, params))

    def end(self):
        self.process.stdin.close()
        return self.process.wait(timeout=20)


def running(mark):
    return subprocess.run(["pgrep", "-f", f"^sleep {mark}$"], capture_output=True).stdout


def until(condition, problem):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(problem)


async def vanish():
    """A client that leaves in the middle of a run, and a server that is killed, leave nothing behind."""
    for number, end in enumerate((Raw.end, lambda raw: (raw.process.kill(), raw.process.wait()))):
        raw = Raw()
        raw.begin()
        mark = f"{number + 7}{os.getpid()}"
        raw.request("tools/call", {"name": "run_command", "arguments": {"command": f"sleep {mark}"}})
        until(lambda: running(mark), "the command has not started")
        end(raw)
        until(lambda: not running(mark), "the command still runs")


async def fuzz():
    """Changed and cut requests, and one above the limit, get an answer or none, and the session stays."""
    chance = random.Random(2663)
    raw = Raw()
    raw.begin()
    calls = [
        {"method": "tools/list"},
        {"method": "ping"},
        {"method": "server/discover", "params": {}},
        {"method": "tools/call", "params": {"name": "run_code", "arguments": {"code": "1"}, "_meta": {"progressToken": 1}}},
        {"method": "tools/call", "params": {"name": "read_output", "arguments": {"id": "x", "cursor": 0, "wait": 0}}},
        {"method": "resources/read", "params": {"uri": "sandbox://x/y"}},
        {"method": "resources/subscribe", "params": {"uri": "sandbox://x/y"}},
        {"method": "tasks/get", "params": {"taskId": "x"}},
        {"method": "notifications/cancelled", "params": {"requestId": 4, "reason": "y"}},
    ]
    lines = []
    for number in range(1500):
        line = bytearray(json.dumps({"jsonrpc": "2.0", "id": 10_000 + number, **chance.choice(calls)}).encode())
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(line))
            change = chance.randrange(4)
            if change == 0:
                line[at] = chance.choice(b'"{}[]:,0\\nul\xff\x00')
            elif change == 1 and len(line) > 20:
                del line[at:at + chance.randint(1, 9)]
            elif change == 2:
                line[at:at] = line[: chance.randint(1, 30)]
            else:
                line = line[: at + 1]
        lines.append(bytes(line).replace(b"\n", b" "))
    lines.append(b'{"jsonrpc":"2.0","id":20000,"method":"tools/call","params":{"name":"' + b"x" * (17 << 20) + b'"}}')
    last = {"jsonrpc": "2.0", "id": 30_000, "method": "tools/call"}
    last["params"] = {"name": "run_code", "arguments": {"code": "6 * 7"}}
    lines.append(json.dumps(last).encode())

    def write():
        for line in lines:
            raw.line(line)
        raw.process.stdin.flush()

    # Answers are read meanwhile: a server that cannot write them reads no more.
    writer = threading.Thread(target=write)
    writer.start()
    answer = raw.answer(30_000)
    assert answer["result"]["structuredContent"]["result"] == "42", answer
    writer.join()
    raw.end()


def resident(process):
    """Kilobytes of memory of a process."""
    with open(f"/proc/{process.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


async def memory():
    """The memory of the server does not grow with the number of calls."""
    raw = Raw()
    raw.begin()
    count = 10_000 if os.environ.get("SANDBOX_TEST_FULL") else 2000

    def calls(count):
        for number in range(count):
            code = f"print('x' * 1000)\n{number}"
            answer = raw.ask("tools/call", {"name": "run_code", "arguments": {"code": code}})
            assert answer["result"]["structuredContent"]["result"] == str(number), answer

    calls(500)
    before = resident(raw.process)
    calls(count)
    grown = resident(raw.process) - before
    assert grown < 4000, f"{grown} kB more after {count} calls"
    raw.end()


async def tasks():
    """A call that takes long becomes a task, for a client that has tasks: it can be asked for, and stopped."""
    tasks = {"extensions": {"io.modelcontextprotocol/tasks": {}}}

    def meta(capabilities):
        info = {"name": "t", "version": "1"}
        prefix = "io.modelcontextprotocol/"
        return {prefix + "protocolVersion": "2026-07-28", prefix + "clientInfo": info, prefix + "clientCapabilities": capabilities}

    raw = Raw("--task-after", "0.5")

    def ask(method, params, capabilities=tasks):
        answer = raw.ask(method, {**params, "_meta": meta(capabilities)})
        return answer.get("result") or answer["error"]

    def run(code, **options):
        return ask("tools/call", {"name": "run_code", "arguments": {"code": code}}, **options)

    def settled(task):
        for _ in range(200):
            state = ask("tasks/get", {"taskId": task["taskId"]})
            if state["status"] != "working":
                return state
            time.sleep(0.05)
        raise AssertionError(state)

    offered = ask("server/discover", {})["capabilities"]["extensions"]
    assert "io.modelcontextprotocol/tasks" in offered, offered
    assert run("x = 6")["resultType"] == "complete", "a short call has its result at once"
    task = run("import time\nprint('begun', flush=True)\ntime.sleep(1.5)\nx * 7")
    assert task["resultType"] == "task" and task["status"] == "working" and task["ttlMs"] > 60_000, task
    done = settled(task)
    assert done["status"] == "completed" and done["result"]["structuredContent"]["result"] == "42", done
    failed = settled(run("time.sleep(1)\n1 / 0"))
    assert failed["status"] == "completed" and failed["result"]["isError"], failed
    task = run("try:\n    for n in range(600):\n        print('step', n, flush=True)\n        time.sleep(0.3)\nfinally:\n    stopped = True")
    until(lambda: "step" in (ask("tasks/get", {"taskId": task["taskId"]}).get("statusMessage") or ""), "no live output")
    assert ask("tasks/cancel", {"taskId": task["taskId"]}).get("resultType") == "complete"
    assert settled(task)["status"] == "cancelled"
    assert run("x, stopped")["structuredContent"]["result"] == "(6, True)", "variables stay"
    assert ask("tasks/get", {"taskId": "no-such-task"})["code"] == -32602
    # Without tasks the client waits for the result, and may not ask for tasks.
    answer = run("time.sleep(1)\n5", capabilities={})
    assert answer["resultType"] == "complete" and answer["structuredContent"]["result"] == "5", answer
    assert ask("tasks/get", {"taskId": task["taskId"]}, capabilities={})["code"] == -32021
    mark = f"6{os.getpid()}"
    ask("tools/call", {"name": "run_command", "arguments": {"command": f"sleep {mark}", "timeout": 3600}})
    assert running(mark), "the task has ended"
    raw.end()
    until(lambda: not running(mark), "the task outlives its session")

    # Over HTTP a task outlives the request that has made it, and ends with the server.
    process, url, key = serve("--task-after", "0.3")
    try:
        async with httpx2.AsyncClient(timeout=30) as plain:

            async def post(method, name, params):
                headers = {"Authorization": f"Bearer {key}", "Accept": "application/json, text/event-stream"}
                headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name}
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta(tasks)}}
                text = (await plain.post(url, json=body, headers=headers)).text
                events = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:") and '"id"' in line]
                return json.loads(events[-1] if events else text)["result"]

            made = await post("tools/call", "create_sandbox", {"name": "create_sandbox", "arguments": {}})
            sandbox = made["structuredContent"]["sandbox"]
            arguments = {"code": "import time\ntime.sleep(1)\n6 * 7", "sandbox": sandbox}
            task = await post("tools/call", "run_code", {"name": "run_code", "arguments": arguments})
            with anyio.fail_after(20):
                while (state := await post("tasks/get", task["taskId"], {"taskId": task["taskId"]}))["status"] == "working":
                    await anyio.sleep(0.1)
            assert state["result"]["structuredContent"]["result"] == "42", state
            arguments = {"command": f"sleep {mark}", "timeout": 3600, "sandbox": sandbox}
            await post("tools/call", "run_command", {"name": "run_command", "arguments": arguments})
            assert running(mark), "the task has ended"
        process.terminate()
        assert process.wait(timeout=20) == 143, process.returncode
        until(lambda: not running(mark), "the task outlives the server")
    finally:
        process.kill()
        process.wait()


async def beside():
    """`serve --mcp` has both protocols on one port, with one key; many sessions at once are apart."""
    command = [PROGRAM, "serve", "--mcp", "--port", "0", "--json", "--network", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        served = json.loads(process.stdout.readline())
        url, key = served["mcp"]["url"], served["mcp"]["key"]
        assert url == served["url"] + "/mcp" and key == served["environment"]["E2B_API_KEY"], served
        list_tools = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accept = {"Accept": "application/json, text/event-stream"}
        bearer = {"Authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient() as plain:
            for headers, status in [
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({"X-API-Key": key}, 401),
                ({**bearer, "Origin": "https://evil.example"}, 403),
                ({**bearer, "Host": "evil.example"}, 403),
            ]:
                answer = await plain.post(url, json=list_tools, headers={**accept, **headers})
                assert answer.status_code == status, (headers, answer.status_code)
            e2b = {"X-API-Key": key}
            made = await plain.post(served["url"] + "/v2/sandboxes", json={"templateID": "base"}, headers=e2b)
            assert made.status_code == 201, made.text
            # A program in a sandbox may have this path, too.
            host = f"8000-{made.json()['sandboxID']}.localhost:{url.split(':')[2].split('/')[0]}"
            answer = await plain.post(url, json=list_tools, headers={**accept, **bearer, "Host": host})
            assert answer.status_code == 502, (answer.status_code, answer.text)
        ready = 0
        all_there = anyio.Event()

        async def one(number):
            nonlocal ready
            async with over_http(url, key, mode="legacy") as session:
                assert "no network" in session.instructions
                await call(session, "run_code", code=f"x = {number}")
                ready += 1
                if ready == 50:
                    all_there.set()
                await all_there.wait()
                assert (await call(session, "run_code", code="x"))["result"] == str(number)
                assert len((await call(session, "list_sandboxes"))["sandboxes"]) == 1

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number in range(50):
                    group.start_soon(one, number)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0, process.returncode
    finally:
        process.kill()
        process.wait()
    for flags, part in [(["--host", "0.0.0.0"], "--api-key"), (["--keep"], "--mcp")]:
        done = subprocess.run([PROGRAM, "serve", "--mcp", "--port", "0", *flags], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and part in done.stderr and not done.stdout, (flags, done)


async def garbage():
    """Lines that are no requests do not end the session."""
    process = subprocess.Popen([PROGRAM, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})]
    lines.append(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    lines += ["", "{", "[]", "null", "\x00\x01", "{\"jsonrpc\": \"1.0\"}", "{\"jsonrpc\":\"2.0\",\"id\":{}}", "[" * 10_000, "\ufffd" * 100]
    for number, params in enumerate([None, [], 7, {"name": 3}, {"name": "run_code", "arguments": []}, {"name": "x" * 100_000}]):
        lines.append(json.dumps({"jsonrpc": "2.0", "id": 100 + number, "method": "tools/call", "params": params}))
    lines.append(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "no/such/method"}))
    arguments = {"code": "6 * 7"}
    lines.append(json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "run_code", "arguments": arguments}}))
    process.stdin.write("".join(line + "\n" for line in lines).encode() + b"\xff\xfe\n")
    process.stdin.flush()
    answers = {}
    while 3 not in answers:
        answer = json.loads(process.stdout.readline())
        answers[answer.get("id")] = answer
    assert answers[1]["result"]["protocolVersion"] == "2025-06-18", answers[1]
    assert answers[3]["result"]["structuredContent"]["result"] == "42", answers[3]
    process.stdin.close()
    process.wait(timeout=20)


SERVER = '''
from mcp.server import MCPServer
server = MCPServer("numbers")

@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b

@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)

@server.tool()
def hidden() -> str:
    """Is not listed."""
    return "seen"

server.run()
'''


async def code_mode():
    """Code calls tools of another server as functions, and only those that are listed."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "server.py")
        with open(program, "w") as file:
            file.write(SERVER)
        entry = {"command": sys.executable, "args": [program], "tools": ["add", "fail"]}
        config = os.path.join(folder, "servers.json")
        with open(config, "w") as file:
            json.dump({"mcpServers": {"numbers": entry}}, file)
        audit = os.path.join(folder, "audit")
        layers = ("--audit", audit, "--scan", "refuse", "--deny-import", "socket")
        async with client("--tools-from", config, *layers) as session:
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert "numbers_add(a, b): Adds two numbers." in tools["run_code"].description, tools["run_code"].description
            assert "hidden" not in tools["run_code"].description
            code = "from mcp_tools import numbers_add\ntotal = 0\nfor n in range(20): total = numbers_add(a=total, b=n)['result']\ntotal"
            answer = await call(session, "run_code", code=code)
            assert answer["result"] == "190", answer
            answer = await call(session, "run_code", code="import mcp_tools\n[name for name in dir(mcp_tools) if name[0] != '_']")
            assert answer["result"] == "['numbers_add', 'numbers_fail']", answer
            message = await refused(session, "run_code", code="mcp_tools.numbers_fail(why='because')")
            assert "ToolError" in message and "because" in message, message
            message = await refused(session, "run_code", code="call_tool_sync('numbers_hidden', {})")
            assert "numbers_hidden" in message and "seen" not in message, message
            message = await refused(session, "run_code", code="import socket")
            assert "socket" in message and "scan" in message, message
            made = await call(session, "create_sandbox")
            answer = await call(session, "run_code", code=code, sandbox=made["sandbox"])
            assert answer["result"] == "190", answer
        with open(os.path.join(audit, "audit.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        calls = [line for line in lines if line["operation"] == "call_tool"]
        begun = [line["request"]["tool"] for line in calls if line["event"] == "begin"]
        assert sorted(begun) == ["numbers_add"] * 40 + ["numbers_fail"], begun
        ended = [line for line in calls if line["event"] == "end"]
        assert len(ended) == 41 and sum("error" in line["result"] for line in ended) == 1, ended
        refusals = [line for line in lines if line["event"] == "end" and "scan" in str(line["result"])]
        assert [line["operation"] for line in refusals] == ["run_code"], refusals
        subprocess.run([PROGRAM, "audit", "verify", audit], check=True, capture_output=True)


if __name__ == "__main__":
    # A supervisor and snapshots of its own.
    with tempfile.TemporaryDirectory() as home:
        os.environ["CODE_SANDBOXES_RUNTIME_DIR"] = os.path.join(home, "supervisor")
        os.environ["CODE_SANDBOXES_STATE_DIR"] = os.path.join(home, "state")
        os.environ["CODE_SANDBOXES_SUPERVISOR_IDLE"] = "1"
        asyncio.run(globals()[sys.argv[2]]())
