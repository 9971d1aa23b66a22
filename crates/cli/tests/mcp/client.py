"""Drives the MCP server with the official client for Python: `client.py PROGRAM CASE`.

Each case is a session, or several. It prints nothing when everything is as it should be, and fails with an assertion
otherwise. Cases whose need is not there print `skipped: REASON`.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
import zipfile

import anyio
import httpx2
from mcp import Client, StdioServerParameters
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
            except Exception:
                continue
            raise AssertionError(f"{wrong} was read")


    async with client() as session:
        await call(session, "write_file", path="c.txt", content="1")
        uri = str((await session.list_resources()).resources[0].uri)
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


async def vanish():
    """A client that dies in the middle of a run leaves nothing behind."""
    process = subprocess.Popen([PROGRAM, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(message):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        process.stdin.flush()

    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    send({"id": 1, "method": "initialize", "params": about})
    process.stdout.readline()
    send({"method": "notifications/initialized"})
    mark = f"7{os.getpid()}"
    arguments = {"command": f"sleep {mark}"}
    send({"id": 2, "method": "tools/call", "params": {"name": "run_command", "arguments": arguments}})
    running = lambda: subprocess.run(["pgrep", "-f", f"^sleep {mark}$"], capture_output=True).stdout
    for _ in range(200):
        if running():
            break
        time.sleep(0.05)
    assert running(), "the command has not started"
    process.stdin.close()
    process.wait(timeout=20)
    for _ in range(100):
        if not running():
            break
        time.sleep(0.05)
    assert not running(), "the command still runs"


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
        async with client("--tools-from", config) as session:
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
            made = await call(session, "create_sandbox")
            answer = await call(session, "run_code", code=code, sandbox=made["sandbox"])
            assert answer["result"] == "190", answer


if __name__ == "__main__":
    # A supervisor and snapshots of its own.
    with tempfile.TemporaryDirectory() as home:
        os.environ["CODE_SANDBOXES_RUNTIME_DIR"] = os.path.join(home, "supervisor")
        os.environ["CODE_SANDBOXES_STATE_DIR"] = os.path.join(home, "state")
        os.environ["CODE_SANDBOXES_SUPERVISOR_IDLE"] = "1"
        asyncio.run(globals()[sys.argv[2]]())
