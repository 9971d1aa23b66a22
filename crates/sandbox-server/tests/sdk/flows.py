"""Flows of the official Python SDK against a server: `flows.py sync` or `flows.py async`, with the three variables set.

Prints a line for each flow, and exits with 1 when one of them fails. Each flow is written once: `w` awaits what the
asynchronous SDK gives and hands on what the other one does.
"""

import asyncio
import io
import json
import os
import sys
import time
import traceback
import urllib.request

import e2b
from e2b_code_interpreter import AsyncSandbox, Sandbox

sys.dont_write_bytecode = True

from support import URL, equal, holds, raises, raw, until, w  # noqa: E402

IS_ASYNC = sys.argv[1] == "async"
S = AsyncSandbox if IS_ASYNC else Sandbox
BASE = e2b.AsyncSandbox if IS_ASYNC else e2b.Sandbox
KEY = os.environ["E2B_API_KEY"]

FLOWS = []


def flow(function):
    """Adds a flow that gets a new sandbox of the code interpreter."""
    FLOWS.append((function.__name__, function, True))
    return function


def bare(function):
    """Adds a flow that makes its own sandboxes."""
    FLOWS.append((function.__name__, function, False))
    return function


# Control plane


@bare
async def create_with_everything():
    s = await w(S.create(timeout=120, metadata={"user": "ada@example.com", "a b": "c/d"}, envs={"TOKEN": "t-1"}))
    info = await w(s.get_info())
    equal(info.metadata, {"user": "ada@example.com", "a b": "c/d"})
    equal(info.template_id, "code-interpreter-v1")
    holds(100 < (info.end_at - info.started_at).total_seconds() <= 121, "lifetime")
    equal((await w(s.commands.run("echo $TOKEN"))).stdout, "t-1\n")
    equal((await w(s.run_code("import os; os.environ['TOKEN']"))).text, "t-1")
    holds(await w(s.kill()), "it is killed")


@bare
async def the_plain_sandbox_has_the_base_template():
    s = await w(BASE.create())
    equal((await w(s.get_info())).template_id, "base")
    equal((await w(s.commands.run("echo base"))).stdout, "base\n")
    await w(s.kill())


@bare
async def an_unknown_template_is_not_found():
    await raises(Exception, lambda: S.create("no-such-template"), "not found")


@bare
async def list_filters_by_metadata():
    marks = [await w(S.create(metadata={"group": "g%1&x", "n": str(n)})) for n in range(3)]
    query = e2b.SandboxQuery(metadata={"group": "g%1&x"})
    found = await w(S.list(query=query).next_items())
    equal(sorted(info.metadata["n"] for info in found), ["0", "1", "2"])
    one = await w(S.list(query=e2b.SandboxQuery(metadata={"group": "g%1&x", "n": "1"})).next_items())
    equal([info.sandbox_id for info in one], [marks[1].sandbox_id])
    none = await w(S.list(query=e2b.SandboxQuery(metadata={"group": "other"})).next_items())
    equal(none, [])
    for s in marks:
        await w(s.kill())


@bare
async def list_has_pages():
    marks = [await w(S.create(metadata={"page": "p"})) for _ in range(3)]
    pages = S.list(query=e2b.SandboxQuery(metadata={"page": "p"}), limit=2)
    first = await w(pages.next_items())
    holds(len(first) == 2 and pages.has_next, "the first page")
    second = await w(pages.next_items())
    holds(len(second) == 1 and not pages.has_next, "the second page")
    ids = {info.sandbox_id for info in first + second}
    equal(ids, {s.sandbox_id for s in marks})
    for s in marks:
        await w(s.kill())


@bare
async def list_filters_by_state():
    s = await w(S.create(metadata={"state": "s"}))
    await w(s.pause())
    async def ids(state):
        query = e2b.SandboxQuery(metadata={"state": "s"}, state=[state])
        return [info.sandbox_id for info in await w(S.list(query=query).next_items())]
    equal(await ids(e2b.SandboxState.PAUSED), [s.sandbox_id])
    equal(await ids(e2b.SandboxState.RUNNING), [])
    await w(s.kill())


@flow
async def connect_finds_the_same_sandbox(s):
    await w(s.run_code("kept = 41"))
    other = await w(S.connect(s.sandbox_id))
    equal((await w(other.run_code("kept + 1"))).text, "42")


@flow
async def connect_only_makes_the_life_longer(s):
    before = (await w(s.get_info())).end_at
    await w(S.connect(s.sandbox_id, timeout=10))
    equal((await w(s.get_info())).end_at, before)
    await w(S.connect(s.sandbox_id, timeout=3000))
    holds((await w(s.get_info())).end_at > before, "longer")


@bare
async def connect_to_nothing_is_not_found():
    await raises(e2b.NotFoundException, lambda: S.connect("nosuchsandbox"))


@flow
async def set_timeout_counts_from_now(s):
    await w(s.set_timeout(1000))
    info = await w(s.get_info())
    left = info.end_at.timestamp() - time.time()
    holds(990 < left < 1001, f"{left} seconds left")


@flow
async def a_short_life_ends(s):
    await w(s.set_timeout(1))
    await until(lambda: not_running(s), "the end")
    await raises(e2b.TimeoutException if hasattr(e2b, "TimeoutException") else Exception, lambda: s.commands.run("true"))


async def not_running(s):
    return not await w(s.is_running())


@flow
async def too_long_a_life_is_refused(s):
    await raises(Exception, lambda: s.set_timeout(10**7), "at most")


@bare
async def kill_is_told_once():
    s = await w(S.create())
    holds(await w(s.is_running()), "it runs")
    holds(await w(s.kill()), "killed")
    holds(not await w(s.kill()), "there is none any more")
    holds(not await w(s.is_running()), "it does not run")
    await raises(e2b.NotFoundException, lambda: s.get_info())


@flow
async def pause_keeps_everything(s):
    await w(s.run_code("a = [1, 2]"))
    await w(s.files.write("kept.txt", "kept"))
    await w(s.pause())
    holds(not await w(s.is_running()), "a paused sandbox does not answer")
    holds([one.mem_used > 0 for one in await w(s.get_metrics())] == [True], "its last figures")
    holds(not await w(s.pause()), "it is paused already")
    s = await w(S.connect(s.sandbox_id))
    equal((await w(s.run_code("a"))).text, "[1, 2]")
    equal(await w(s.files.read("kept.txt")), "kept")


@bare
async def a_sandbox_pauses_at_its_end_and_resumes_by_itself():
    s = await w(S.create(timeout=1, lifecycle={"on_timeout": "pause", "auto_resume": True}))
    await w(s.run_code("kept = 7"))
    info = await w(s.get_info())
    equal((info.lifecycle["on_timeout"].value, info.lifecycle["auto_resume"]), ("pause", True))
    async def paused():
        return (await w(s.get_info())).state == e2b.SandboxState.PAUSED
    await until(paused, "the pause")
    equal((await w(s.run_code("kept"))).text, "7", "a request resumes it")
    await w(s.set_timeout(60))
    await w(s.kill())


@bare
async def ports_can_be_closed_to_others():
    s = await w(S.create(network={"allow_public_traffic": False}))
    holds(s.traffic_access_token, "it has a token")
    equal((await w(s.run_code("1 + 1"))).text, "2")
    host = s.get_host(8125)
    equal(raw("GET", "/", host=host)[0], 401)
    status, _, body = raw("GET", "/", {"E2B-Traffic-Access-Token": s.traffic_access_token}, host=host)
    equal(status, 502, f"nothing listens there: {body}")
    await w(s.kill())


@bare
async def a_named_snapshot_is_found_by_name():
    name = "named-" + str(os.getpid())
    s = await w(S.create())
    await w(s.run_code("value = 12"))
    snapshot = await w(s.create_snapshot(name=name))
    holds(any(name in one for one in snapshot.names), f"{snapshot}")
    await raises(Exception, lambda: s.create_snapshot(name=name), "409")
    other = await w(S.create(name))
    equal((await w(other.run_code("value"))).text, "12", "with the variables of Python")
    for sandbox in (s, other):
        await w(sandbox.kill())
    holds(await w(S.delete_snapshot(snapshot.snapshot_id)), "it is deleted")


@flow
async def metrics_are_measured(s):
    found = await w(s.get_metrics())
    holds(len(found) == 1 and found[0].mem_used > 0 and found[0].cpu_count >= 1, f"{found}")


@bare
async def a_snapshot_is_started_from():
    s = await w(S.create())
    await w(s.files.write("/home/user/data.txt", "in the snapshot"))
    snapshot = await w(s.create_snapshot())
    await w(s.files.write("/home/user/data.txt", "changed"))
    other = await w(S.create(snapshot.snapshot_id))
    equal(await w(other.files.read("/home/user/data.txt")), "in the snapshot")
    listed = await w(S.list_snapshots().next_items())
    holds(snapshot.snapshot_id in [one.snapshot_id for one in listed], "it is listed")
    holds(await w(S.delete_snapshot(snapshot.snapshot_id)), "it is deleted")
    holds(not await w(S.delete_snapshot(snapshot.snapshot_id)), "it is gone")
    await w(other.kill())
    await w(s.kill())


@bare
async def forks_have_files_of_their_own():
    s = await w(S.create())
    await w(s.files.write("fork.txt", "one"))
    (fork,) = await w(s.fork())
    equal(await w(fork.files.read("fork.txt")), "one")
    await w(fork.files.write("fork.txt", "two"))
    equal(await w(s.files.read("fork.txt")), "one")
    await w(fork.kill())
    await w(s.kill())


@bare
async def a_wish_above_the_ceiling_is_refused():
    await raises(Exception, lambda: S.create(allow_internet_access=True), "403")


@bare
async def less_network_is_granted():
    s = await w(S.create(allow_internet_access=False))
    equal((await w(s.get_info())).allow_internet_access, False)
    await w(s.kill())


@bare
async def a_wrong_key_is_refused():
    await raises(e2b.AuthenticationException, lambda: S.create(api_key="e2b_" + "0" * 40))
    status, _, body = raw("GET", "/v2/sandboxes")
    equal(status, 401)
    equal(json.loads(body)["code"], 401)


@bare
async def create_is_idempotent():
    headers = {"X-API-Key": KEY, "Content-Type": "application/json", "Idempotency-Key": "flow-1" + str(IS_ASYNC).lower()}
    body = json.dumps({"templateID": "base"}).encode()
    made = [json.loads(raw("POST", "/v2/sandboxes", headers, body)[2])["sandboxID"] for _ in range(2)]
    equal(made[0], made[1])
    equal(raw("DELETE", "/sandboxes/" + made[0], {"X-API-Key": KEY})[0], 204)


@bare
async def what_is_not_here_says_so():
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    for path in ["/volumes", "/secrets", "/v3/templates"]:
        status, _, body = raw("POST", path, headers, b"{}")
        equal(status, 501, path)
        holds("is not here" in json.loads(body)["message"], body)


@bare
async def templates_volumes_and_secrets_say_so_too():
    kinds = (e2b.AsyncTemplate, e2b.AsyncVolume, e2b.AsyncSecret) if IS_ASYNC else (e2b.Template, e2b.Volume, e2b.Secret)
    template, volume, secret = kinds
    recipe = template().from_python_image("3")
    await raises(Exception, lambda: template.build(recipe, "own-template"), "building a template is not here")
    holds(await w(template.exists("base")), "a template is known by its name")
    holds(not await w(template.exists("no-such-template")), "and others are not")
    await raises(Exception, lambda: template.get_tags("base"), "is not here")
    await raises(Exception, lambda: volume.create("own-volume"), "a volume is not here")
    await raises(Exception, lambda: volume.list(), "a volume is not here")
    await raises(Exception, lambda: secret.create("OWN", "value"), "a secret is not here")
    await raises(Exception, lambda: S.create(mcp={"duckduckgo": {}}), "the MCP gateway is not here")


@flow
async def the_network_stays_as_it_is(s):
    await w(s.update_network({}))
    await raises(Exception, lambda: s.update_network({"allow_out": ["example.com"]}), "403")


# Commands


@flow
async def a_command_has_output_and_status(s):
    result = await w(s.commands.run("echo out; echo err >&2"))
    equal((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0))


@flow
async def a_failing_command_raises(s):
    error = await raises(e2b.CommandExitException, lambda: s.commands.run("echo o; echo e >&2; exit 3"))
    equal((error.exit_code, error.stdout, error.stderr), (3, "o\n", "e\n"))


@flow
async def commands_have_environment_and_directory(s):
    result = await w(s.commands.run("echo $A; pwd", envs={"A": "ä b"}, cwd="/tmp"))
    equal(result.stdout, "ä b\n/tmp\n")
    equal((await w(s.commands.run("pwd; whoami; echo $HOME"))).stdout, "/home/user\nuser\n/home/user\n")


@flow
async def a_missing_directory_is_an_error(s):
    await raises(e2b.InvalidArgumentException, lambda: s.commands.run("true", cwd="/nope"), "cwd '/nope' does not exist")


@flow
async def callbacks_hear_output(s):
    out, err = [], []
    await w(s.commands.run("echo 1; echo 2 >&2; echo 3", on_stdout=out.append, on_stderr=err.append))
    equal(("".join(out), "".join(err)), ("1\n3\n", "2\n"))


@flow
async def much_output_is_whole(s):
    result = await w(s.commands.run("seq 1 300000"))
    equal(result.stdout.count("\n"), 300000)
    equal(result.stdout[-7:], "300000\n")


@flow
async def background_commands_are_listed_and_killed(s):
    handle = await w(s.commands.run("sleep 100", background=True))
    listed = await w(s.commands.list())
    holds(any(one.pid == handle.pid and one.cmd == "/bin/bash" for one in listed), f"{listed}")
    holds(await w(handle.kill()), "killed")
    error = await raises(e2b.CommandExitException, lambda: handle.wait())
    equal(error.exit_code, -1)
    equal(error.error, "signal: killed")
    holds(not await w(s.commands.kill(handle.pid)), "there is none any more")


@flow
async def commands_are_connected_to(s):
    handle = await w(s.commands.run("sleep 0.5; echo late", background=True))
    other = await w(s.commands.connect(handle.pid))
    equal((await w(other.wait())).stdout, "late\n")
    equal((await w(handle.wait())).stdout, "late\n")


@flow
async def a_command_outlives_its_client(s):
    handle = await w(s.commands.run("sleep 0.4; echo done > /tmp/outlived", background=True))
    await w(handle.disconnect())
    await until(lambda: s.files.exists("/tmp/outlived"), "the command has gone on")


@flow
async def standard_input_is_written_and_closed(s):
    handle = await w(s.commands.run("cat", background=True, stdin=True))
    await w(s.commands.send_stdin(handle.pid, "one\n"))
    await w(s.commands.send_stdin(handle.pid, b"two\n"))
    await w(s.commands.close_stdin(handle.pid))
    equal((await w(handle.wait())).stdout, "one\ntwo\n")


@flow
async def standard_input_is_streamed(s):
    handle = await w(s.commands.run("wc -c", background=True, stdin=True))
    chunks = ["x" * 10000, "y" * 10000, b"z"]
    if IS_ASYNC:
        stream = s.commands.stream_input(handle.pid)
        for chunk in chunks:
            await stream.send(chunk)
        await stream.close()
    else:
        s.commands.stream_input(handle.pid, chunks)
    await w(s.commands.close_stdin(handle.pid))
    equal((await w(handle.wait())).stdout.strip(), "20001")


@flow
async def without_stdin_there_is_none(s):
    equal((await w(s.commands.run("cat; echo end"))).stdout, "end\n")


@flow
async def a_time_limit_ends_everything(s):
    await raises(e2b.TimeoutException, lambda: s.commands.run("sleep 1234 & sleep 1235", timeout=0.5))
    await until(lambda: no_process(s, "sleep 123[45]"), "no child is left")


async def no_process(s, pattern):
    # The shell that asks has no such name.
    found = await w(s.commands.run(f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '{pattern}' || true"))
    return found.stdout.strip() == "0"


@flow
async def root_is_refused_with_advice(s):
    await raises(Exception, lambda: s.commands.run("id", user="root"), "-p local-docker")
    equal((await w(s.commands.run("id -un", user="user"))).stdout, "user\n")
    await raises(e2b.AuthenticationException, lambda: s.commands.run("id", user="ada"), "invalid username")


@flow
async def files_of_root_are_refused_and_never_those_of_the_user(s):
    await w(s.files.write("own.txt", "the user's"))
    advice = "-p local-docker"
    for call in (
        lambda: s.files.read("own.txt", user="root"),
        lambda: s.files.read("own.txt", format="bytes", user="root"),
        lambda: s.files.write("own.txt", "root's", user="root"),
        lambda: s.files.write_files([{"path": "own.txt", "data": "root's"}], user="root"),
        lambda: s.files.list(".", user="root"),
        lambda: s.files.exists("own.txt", user="root"),
        lambda: s.files.get_info("own.txt", user="root"),
        lambda: s.files.make_dir("made", user="root"),
        lambda: s.files.rename("own.txt", "other.txt", user="root"),
        lambda: s.files.remove("own.txt", user="root"),
        lambda: s.files.watch_dir(".", user="root", **({"on_event": print} if IS_ASYNC else {})),
    ):
        await raises(e2b.SandboxException, call, advice)
    addresses = {"POST": s.upload_url("own.txt", user="root"), "GET": s.download_url("own.txt", user="root")}
    for method, address in addresses.items():
        status, _, body = raw(method, address.removeprefix(URL))
        equal((status, advice in body.decode()), (403, True))
    equal(await w(s.files.read("own.txt")), "the user's")
    equal([entry.name for entry in await w(s.files.list("."))], ["own.txt"])
    equal(await w(s.files.read("own.txt", user="user")), "the user's", "control:")


@flow
async def output_need_not_be_kept(s):
    seen = []
    result = await w(s.commands.run("echo seen", on_stdout=seen.append, retain_output=False))
    equal((result.stdout, seen), (None, ["seen\n"]))


@flow
async def bytes_across_pieces_are_characters(s):
    code = "import os, time\nfor b in 'ä€😀'.encode(): os.write(1, bytes([b])); time.sleep(.01)"
    await w(s.files.write("/tmp/slow.py", code))
    result = await w(s.commands.run("python3 /tmp/slow.py"))
    equal(result.stdout, "ä€😀")


@flow
async def git_works(s):
    await w(s.git.init("/home/user/repo"))
    await w(s.git.configure_user("Ada", "ada@example.com"))
    await w(s.files.write("/home/user/repo/a.txt", "a"))
    await w(s.git.add("/home/user/repo"))
    await w(s.git.commit("/home/user/repo", "first"))
    status = await w(s.git.status("/home/user/repo"))
    holds(status.is_clean, f"{status}")


# Terminals


@flow
async def a_terminal_runs_a_shell(s):
    seen = bytearray()
    if IS_ASYNC:
        handle = await s.pty.create(e2b.PtySize(rows=24, cols=80), on_data=seen.extend)
    else:
        handle = s.pty.create(e2b.PtySize(rows=24, cols=80))
    await w(s.pty.resize(handle.pid, e2b.PtySize(rows=30, cols=101)))
    await w(s.pty.send_stdin(handle.pid, b"stty size; echo t=$((20+2)); exit 4\n"))
    try:
        await w(handle.wait() if IS_ASYNC else handle.wait(on_pty=seen.extend))
    except e2b.CommandExitException as error:
        equal(error.exit_code, 4)
    holds(b"30 101" in seen and b"t=22" in seen, bytes(seen))


@flow
async def a_terminal_is_connected_to(s):
    if IS_ASYNC:
        handle = await s.pty.create(e2b.PtySize(rows=24, cols=80), on_data=lambda _: None)
        seen = bytearray()
        other = await s.pty.connect(handle.pid, on_data=seen.extend)
        await s.pty.send_stdin(handle.pid, b"echo again-$((4+4)); exit\n")
        await other.wait()
    else:
        handle = s.pty.create(e2b.PtySize(rows=24, cols=80))
        handle.disconnect()
        other = s.pty.connect(handle.pid)
        s.pty.send_stdin(handle.pid, b"echo again-$((4+4)); exit\n")
        seen = bytearray()
        other.wait(on_pty=seen.extend)
    holds(b"again-8" in seen, bytes(seen))


@flow
async def a_part_of_a_file_is_read(s):
    await w(s.files.write("/home/user/part.txt", "0123456789"))
    url = await w(s.download_url("part.txt"))
    status, headers, body = raw("GET", url[len(URL):], {"Range": "bytes=2-4"})
    equal((status, headers["Content-Range"], body), (206, "bytes 2-4/10", b"234"))


@flow
async def a_terminal_is_killed(s):
    if IS_ASYNC:
        handle = await s.pty.create(e2b.PtySize(rows=24, cols=80), on_data=lambda _: None)
    else:
        handle = s.pty.create(e2b.PtySize(rows=24, cols=80))
    holds(await w(s.pty.kill(handle.pid)), "killed")
    holds(not await w(s.pty.kill(handle.pid)), "there is none any more")


# Files


@flow
async def files_are_written_and_read(s):
    info = await w(s.files.write("dir/sub/a.txt", "text ä"))
    equal((info.name, info.path), ("a.txt", "/home/user/dir/sub/a.txt"))
    equal(await w(s.files.read("dir/sub/a.txt")), "text ä")
    equal(bytes(await w(s.files.read("dir/sub/a.txt", format="bytes"))), "text ä".encode())


@flow
async def binary_files_are_whole(s):
    data = bytes(range(256)) * 4096
    await w(s.files.write("/tmp/b", data))
    equal(bytes(await w(s.files.read("/tmp/b", format="bytes"))), data)


@flow
async def files_are_streamed(s):
    data = os.urandom(3_000_000)
    await w(s.files.write("/tmp/s", io.BytesIO(data)))
    stream = await w(s.files.read("/tmp/s", format="stream"))
    got = bytearray()
    if IS_ASYNC:
        async for piece in stream:
            got += piece
    else:
        for piece in stream:
            got += piece
    equal(bytes(got), data)


@flow
async def files_are_written_compressed(s):
    data = b"abc" * 100_000
    await w(s.files.write("/tmp/z", data, gzip=True))
    equal(bytes(await w(s.files.read("/tmp/z", format="bytes", gzip=True))), data)
    await w(s.files.write("/tmp/o", data, use_octet_stream=True))
    equal(bytes(await w(s.files.read("/tmp/o", format="bytes"))), data)


@flow
async def many_files_are_written_at_once(s):
    files = [{"path": f"many/{n}.txt", "data": str(n)} for n in range(5)]
    infos = await w(s.files.write_files(files))
    equal([info.path for info in infos], [f"/home/user/many/{n}.txt" for n in range(5)])
    equal(await w(s.files.read("many/4.txt")), "4")


@flow
async def missing_files_are_not_found(s):
    await raises(e2b.FileNotFoundException, lambda: s.files.read("nope.txt"), "does not exist")
    await raises(e2b.FileNotFoundException, lambda: s.files.get_info("nope.txt"))
    await raises(e2b.FileNotFoundException, lambda: s.files.list("/nope"))
    holds(not await w(s.files.exists("nope.txt")), "it does not exist")


@flow
async def a_directory_is_no_file(s):
    await raises(e2b.InvalidArgumentException, lambda: s.files.read("/tmp"), "is a directory")


@flow
async def entries_are_listed_to_a_depth(s):
    await w(s.files.write("/tmp/d/1/2/3.txt", "x"))
    async def names(depth):
        return [entry.path for entry in await w(s.files.list("/tmp/d", depth=depth))]
    equal(await names(1), ["/tmp/d/1"])
    equal(await names(3), ["/tmp/d/1", "/tmp/d/1/2", "/tmp/d/1/2/3.txt"])


@flow
async def entries_are_described(s):
    await w(s.commands.run("echo 12345 > /tmp/e; chmod 640 /tmp/e; ln -s /tmp/e /tmp/l"))
    info = await w(s.files.get_info("/tmp/e"))
    equal((info.size, info.mode, info.permissions, info.owner, info.group), (6, 0o640, "-rw-r-----", "user", "user"))
    equal(info.type, e2b.FileType.FILE)
    holds(abs(info.modified_time.timestamp() - time.time()) < 60, "the time of last change")
    link = await w(s.files.get_info("/tmp/l"))
    equal((link.type, link.symlink_target), (e2b.FileType.SYMLINK, "/tmp/e"))
    equal(await w(s.files.read("/tmp/l")), "12345\n")


@flow
async def files_have_metadata(s):
    written = await w(s.files.write("marked.txt", "x", metadata={"author": "ada", "Purpose": "a test"}))
    equal(written.metadata, {"author": "ada", "purpose": "a test"})
    equal((await w(s.files.get_info("marked.txt"))).metadata, {"author": "ada", "purpose": "a test"})
    (entry,) = [one for one in await w(s.files.list("/home/user")) if one.name == "marked.txt"]
    equal(entry.metadata["author"], "ada")
    told = await w(s.run_code("import os; os.getxattr('/home/user/marked.txt', 'user.author')"))
    equal(told.text, "b'ada'", "code sees it as an extended attribute")


@flow
async def directories_are_made_once(s):
    holds(await w(s.files.make_dir("new/deep")), "made")
    holds(not await w(s.files.make_dir("new/deep")), "it was there")
    equal((await w(s.files.get_info("new"))).type, e2b.FileType.DIR)


@flow
async def files_are_renamed_and_removed(s):
    await w(s.files.write("/tmp/old", "x"))
    info = await w(s.files.rename("/tmp/old", "/tmp/to/new"))
    equal(info.path, "/tmp/to/new")
    holds(not await w(s.files.exists("/tmp/old")), "moved")
    await w(s.files.remove("/tmp/to"))
    holds(not await w(s.files.exists("/tmp/to/new")), "removed")
    await w(s.files.remove("/tmp/to"))


@flow
async def directories_are_watched(s):
    await w(s.files.make_dir("/tmp/watched"))
    events = []
    if IS_ASYNC:
        handle = await s.files.watch_dir("/tmp/watched", on_event=events.append, recursive=True)
    else:
        handle = s.files.watch_dir("/tmp/watched", recursive=True)
    await w(s.files.write("/tmp/watched/a.txt", "x"))
    await w(s.commands.run("mkdir /tmp/watched/sub; sleep .1; echo y > /tmp/watched/sub/b; rm /tmp/watched/a.txt"))
    def seen():
        if not IS_ASYNC:
            events.extend(handle.get_new_events())
        found = {(event.name, event.type.value) for event in events}
        return {("a.txt", "create"), ("a.txt", "write"), ("a.txt", "remove"), ("sub/b", "write")} <= found
    await until(seen, f"events: {events}")
    await w(s.files.remove("/tmp/watched"))
    def ended():
        if not IS_ASYNC:
            events.extend(handle.get_new_events())
        return (".", "remove") in {(event.name, event.type.value) for event in events}
    await until(ended, f"the end of the directory itself: {events}")
    await w(handle.stop())


@flow
async def a_missing_directory_is_not_watched(s):
    if IS_ASYNC:
        await raises(Exception, lambda: s.files.watch_dir("/nope", on_event=lambda _: None))
    else:
        await raises(e2b.FileNotFoundException, lambda: s.files.watch_dir("/nope"))


@flow
async def signed_urls_open_one_file(s):
    await w(s.files.write("signed.txt", "by url"))
    url = await w(s.download_url("signed.txt"))
    holds("signature=v1_" in url, url)
    equal(urllib.request.urlopen(url).read(), b"by url")
    path = url[len(URL):]
    status, _, _ = raw("GET", path.replace("signed.txt", "other.txt"))
    equal(status, 401, "another path")
    old = await w(s.download_url("signed.txt", use_signature_expiration=-10))
    equal(raw("GET", old[len(URL):])[0], 401, "an expired url")
    upload = await w(s.upload_url("up.txt", use_signature_expiration=60))
    mark = "xyz"
    body = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="up.txt"\r\n\r\nup\r\n--{mark}--\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary={mark}"}
    equal(raw("POST", upload[len(URL):], headers, body.encode())[0], 200)
    equal(await w(s.files.read("up.txt")), "up")


@flow
async def envd_needs_the_token(s):
    headers = {"E2b-Sandbox-Id": s.sandbox_id, "E2b-Sandbox-Port": "49983", "Content-Type": "application/json"}
    status, _, body = raw("POST", "/filesystem.Filesystem/Stat", headers, b'{"path": "/"}')
    equal((status, json.loads(body)["code"]), (401, 401))
    equal(raw("GET", "/health", headers)[0], 204)


# Ports


@flow
async def ports_have_host_names(s):
    await w(s.files.write("/tmp/site/index.html", "a page"))
    await w(s.commands.run("cd /tmp/site && exec python3 -m http.server 8123", background=True))
    host = s.get_host(8123)
    holds(host.startswith(f"8123-{s.sandbox_id}.localhost:"), host)
    def page():
        status, _, body = raw("GET", "/index.html", host=host)
        return status == 200 and body == b"a page"
    await until(page, "the page")
    status, _, body = raw("GET", "/", host=s.get_host(8124))
    equal(status, 502)
    holds(b"port is not open" in body, body)


# Code


@flow
async def code_has_a_result_and_keeps_its_state(s):
    await w(s.run_code("x = 20"))
    result = await w(s.run_code("x + 1"))
    equal((result.text, result.error), ("21", None))
    holds(result.results[0].is_main_result, "the main result")


@flow
async def prints_are_logs(s):
    result = await w(s.run_code("import sys; print('o'); print('e', file=sys.stderr)"))
    equal(("".join(result.logs.stdout), "".join(result.logs.stderr)), ("o\n", "e\n"))
    equal(result.results, [])


@flow
async def exceptions_are_errors(s):
    result = await w(s.run_code("1 / 0"))
    equal((result.error.name, result.error.value), ("ZeroDivisionError", "division by zero"))
    holds("Traceback" in result.error.traceback, result.error.traceback)


@flow
async def code_callbacks_hear_everything(s):
    seen = {"stdout": [], "stderr": [], "result": [], "error": []}
    hear = {f"on_{name}": list.append.__get__(found) for name, found in seen.items()}
    await w(s.run_code("print('live'); import sys; sys.stderr.write('warn'); display(7); 1 / 0", **hear))
    equal(seen["stdout"][0].line.strip(), "live")
    equal(seen["stderr"][0].line, "warn")
    equal(seen["result"][0].text, "7")
    equal(seen["error"][0].name, "ZeroDivisionError")


@flow
async def contexts_are_apart(s):
    one = await w(s.create_code_context(cwd="/tmp"))
    equal((one.language, one.cwd), ("python", "/tmp"))
    await w(s.run_code("y = 1", context=one))
    equal((await w(s.run_code("y", context=one))).text, "1")
    equal((await w(s.run_code("y"))).error.name, "NameError")
    equal((await w(s.run_code("import os; os.getcwd()", context=one))).text, "/tmp")
    listed = await w(s.list_code_contexts())
    holds(one.id in [context.id for context in listed], f"{listed}")
    await w(s.restart_code_context(one))
    equal((await w(s.run_code("y", context=one))).error.name, "NameError")
    await w(s.remove_code_context(one))
    await raises(e2b.NotFoundException, lambda: s.run_code("1", context=one))


@flow
async def a_run_has_variables_of_its_own(s):
    code = "import os; os.environ.get('ONCE')"
    equal((await w(s.run_code(code, envs={"ONCE": "yes"}))).text, "yes")
    equal((await w(s.run_code(code))).results, [])


@flow
async def a_missing_language_is_an_error(s):
    await raises(Exception, lambda: s.run_code("1", language="cobol"), "Language cobol is not available here")


@flow
async def a_run_that_is_given_up_is_interrupted(s):
    await w(s.run_code("import time; state = 5"))
    await raises(e2b.TimeoutException, lambda: s.run_code("time.sleep(60)", timeout=0.7))
    result = await w(s.run_code("state", timeout=20))
    equal(result.text, "5", "the interpreter is free again, with its state")


@flow
async def rich_results_have_their_types(s):
    code = """
class Rich:
    def _repr_html_(self): return '<b>h</b>'
    def _repr_markdown_(self): return '*m*'
    def _repr_latex_(self): return '$x$'
    def _repr_svg_(self): return '<svg/>'
    def _repr_json_(self): return {'a': 1}
    def _repr_javascript_(self): return 'f()'
Rich()"""
    (result,) = (await w(s.run_code(code))).results
    equal((result.html, result.markdown, result.latex, result.svg), ("<b>h</b>", "*m*", "$x$", "<svg/>"))
    equal((result.json, result.javascript), ({"a": 1}, "f()"))


@flow
async def charts_have_their_data(s):
    if (await w(s.run_code("import matplotlib"))).error:
        print("skipped: the interpreter has no matplotlib")
        return
    code = "import matplotlib.pyplot as plt; plt.%s; plt.title('T'); plt.show()"
    (result,) = (await w(s.run_code(code % "bar(['a', 'b'], [1, 2], label='g')"))).results
    holds(result.png, "the image")
    equal((result.chart.type.value, result.chart.title), ("bar", "T"))
    equal([(bar.label, bar.group, bar.value) for bar in result.chart.elements], [("a", "g", 1.0), ("b", "g", 2.0)])
    (result,) = (await w(s.run_code(code % "plot([1, 2], [3, 4])"))).results
    equal(result.chart.elements[0].points, [(1.0, 3.0), (2.0, 4.0)])
    for kind, call in [("scatter", "scatter([1], [2])"), ("pie", "pie([1, 2])"), ("box_and_whisker", "boxplot([1, 2, 3])")]:
        (result,) = (await w(s.run_code(code % call))).results
        equal(result.chart.type.value, kind)


@flow
async def tables_have_their_data(s):
    if (await w(s.run_code("import pandas"))).error:
        print("skipped: the interpreter has no pandas")
        return
    (result,) = (await w(s.run_code("pandas.DataFrame({'a': [1, None], 'b': ['x', 'y']})"))).results
    equal(result.data, {"a": [1, None], "b": ["x", "y"]})
    holds("<table" in result.html, "the table")


@flow
async def executions_are_counted(s):
    equal((await w(s.run_code("1"))).execution_count, 1)
    equal((await w(s.run_code("2"))).execution_count, 2)


@flow
async def the_shell_of_a_cell_works(s):
    result = await w(s.run_code("!echo shell"))
    equal("".join(result.logs.stdout).strip(), "shell")


@flow
async def code_and_commands_share_files(s):
    await w(s.run_code("open('shared.txt', 'w').write('by code')"))
    equal(await w(s.files.read("shared.txt")), "by code")
    equal((await w(s.commands.run("cat shared.txt"))).stdout, "by code")


@flow
async def a_dead_interpreter_is_told(s):
    result = await w(s.run_code("import os; os._exit(9)"))
    equal(result.error.name, "KernelDied")
    equal((await w(s.run_code("1 + 1"))).text, "2")


async def main():
    wanted = sys.argv[2:]
    failed = 0
    for name, function, needs_sandbox in FLOWS:
        if wanted and name not in wanted:
            continue
        begin, sandbox = time.monotonic(), None
        try:
            if needs_sandbox:
                sandbox = await w(S.create())
                await asyncio.wait_for(function(sandbox), 60)
            else:
                await asyncio.wait_for(function(), 60)
            print(f"ok {name} {time.monotonic() - begin:.2f}", flush=True)
        except BaseException:
            failed += 1
            print(f"FAILED {name} {time.monotonic() - begin:.2f}\n{traceback.format_exc()}", flush=True)
        finally:
            if sandbox is not None:
                await w(sandbox.kill())
    print(f"{len(FLOWS)} flows, {failed} failed", flush=True)
    return failed


sys.exit(1 if asyncio.run(main()) else 0)
