"""The main flows of the provider's Python client, against a server of the tests."""

import asyncio

from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams, Daytona, Resources
from daytona import SessionExecuteRequest

daytona = Daytona()
sandbox = daytona.create(
    CreateSandboxFromSnapshotParams(name="from-python", env_vars={"WORD": "x y"}, labels={"team": "red"})
)
assert sandbox.state == "started", sandbox.state

done = sandbox.process.exec("echo $WORD; exit 3", cwd="/tmp", env={"MORE": "1"})
assert (done.result, done.exit_code) == ("x y\n", 3), done
assert sandbox.process.code_run("print(6 * 7)").result == "42\n"

sandbox.process.create_session("s1")
first = sandbox.process.execute_session_command("s1", SessionExecuteRequest(command="cd /tmp && export A=b"))
assert first.exit_code == 0, first
second = sandbox.process.execute_session_command(
    "s1", SessionExecuteRequest(command="pwd; echo $A; echo bad >&2")
)
assert (second.stdout, second.stderr) == ("/tmp\nb\n", "bad\n"), second
started = sandbox.process.execute_session_command(
    "s1", SessionExecuteRequest(command="read line; echo got $line; sleep 0.3; echo end >&2", run_async=True)
)
sandbox.process.send_session_command_input("s1", started.cmd_id, "word")
out, err = [], []
asyncio.run(
    sandbox.process.get_session_command_logs_async("s1", started.cmd_id, out.append, err.append)
)
assert "got word" in "".join(out) and "end" in "".join(err), (out, err)
assert sandbox.process.get_session_command("s1", started.cmd_id).exit_code == 0
sandbox.process.delete_session("s1")

sandbox.fs.create_folder("/workspace/d", "755")
sandbox.fs.upload_file(b"one\0two", "/workspace/d/a.bin")
assert sandbox.fs.download_file("/workspace/d/a.bin") == b"one\0two"
assert [found.name for found in sandbox.fs.list_files("/workspace/d")] == ["a.bin"]
assert sandbox.fs.get_file_info("/workspace/d/a.bin").size == 7
sandbox.fs.move_files("/workspace/d/a.bin", "/workspace/d/b.bin")
sandbox.fs.delete_file("/workspace/d/b.bin")

result = sandbox.code_interpreter.run_code("x = 1\nprint('hi')")
assert result.stdout == "hi\n" and result.error is None, result
assert sandbox.code_interpreter.run_code("print(x)").stdout == "1\n"
assert sandbox.code_interpreter.run_code("1 / 0").error.name == "ZeroDivisionError"
context = sandbox.code_interpreter.create_context(cwd="/tmp")
assert sandbox.code_interpreter.run_code("print('x' in dir())", context=context).stdout == "False\n"
sandbox.code_interpreter.delete_context(context)

handle = sandbox.process.create_pty_session(id="p1")
handle.wait_for_connection()
handle.send_input("echo in-$((40 + 2)); exit 4\n")
seen = []
end = handle.wait(on_data=seen.append)
assert b"in-42" in b"".join(seen) and end.exit_code == 4, (seen, end)

assert daytona.get("from-python").id == sandbox.id
assert any(found.id == sandbox.id for found in daytona.list())
sandbox.set_labels({"team": "blue"})
assert sandbox.get_preview_link(8000).token
sandbox.delete()

built = daytona.create(
    CreateSandboxFromImageParams(image="debian:12", resources=Resources(cpu=2, memory=4)),
    on_snapshot_create_logs=lambda line: None,
)
assert built.cpu == 2, built
built.delete()
print("all is well")
