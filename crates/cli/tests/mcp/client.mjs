// Drives the MCP server with the official client for JavaScript: `client.mjs PROGRAM MODULES`.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [program, modules] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");

// A package that needs no index.
const wheels = mkdtempSync(join(tmpdir(), "wheels-"));
const WHEEL = `
import os, sys, zipfile
with zipfile.ZipFile(os.path.join(sys.argv[1], "tinya-1.0-py3-none-any.whl"), "w") as wheel:
    wheel.writestr("tinya.py", "VERSION = '1.0'\\n")
    for name, text in [
        ("METADATA", "Metadata-Version: 2.1\\nName: tinya\\nVersion: 1.0\\n"),
        ("WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"),
        ("RECORD", ""),
    ]:
        wheel.writestr("tinya-1.0.dist-info/" + name, text)
`;
execFileSync("python3", ["-c", WHEEL, wheels]);
const environment = { ...process.env, PIP_NO_INDEX: "1", PIP_FIND_LINKS: wheels };

const transport = new StdioClientTransport({ command: program, args: ["mcp"], env: environment, stderr: "ignore" });
const client = new Client({ name: "test", version: "1" });
await client.connect(transport);

const { tools } = await client.listTools();
assert.equal(tools.length, 18);

// The client checks each answer against the output schema of its tool.
async function call(name, args = {}) {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(!result.isError, `${name}: ${JSON.stringify(result.content)}`);
  called.add(name);
  return result.structuredContent;
}
const called = new Set();

assert.equal((await call("run_code", { code: "6 * 7" })).result, "42");
assert.equal((await call("run_command", { command: "echo hi" })).stdout, "hi\n");
const { id } = await call("start_command", { command: "cat" });
const { cursor } = await call("write_stdin", { id, text: "x\n" });
assert.equal((await call("read_output", { id, cursor, wait: 10 })).output, "x\n");
assert.equal((await call("stop_command", { id })).running, false);
await call("write_file", { path: "a.txt", content: "one" });
await call("edit_file", { path: "a.txt", old_text: "one", new_text: "two" });
assert.equal((await call("read_file", { path: "a.txt" })).content, "two");
assert.ok((await call("list_files")).entries.some((entry) => entry.path.endsWith("/a.txt")));
assert.equal((await call("find_files", { contains: "two" })).found.length, 1);
await call("start_command", { command: "python3 -m http.server 8000" });
assert.match((await call("expose_port", { port: 8000 })).url, /^http/);
const name = `mcp-js-${process.pid}`;
await call("snapshot", { name });
await call("restore", { name });
const { sandbox } = await call("create_sandbox");
assert.equal((await call("list_sandboxes")).sandboxes.length, 2);
await call("stop_sandbox", { sandbox });

const failed = await client.callTool({ name: "run_code", arguments: { code: "1 / 0" } });
assert.ok(failed.isError && failed.structuredContent.error.name === "ZeroDivisionError");
const wrong = await client.callTool({ name: "run_code", arguments: { code: 1 } });
assert.ok(wrong.isError && /`code` is wrong/.test(wrong.content[0].text));

assert.deepEqual((await call("install_packages", { packages: ["tinya"] })).installed, ["tinya"]);
assert.equal((await call("run_code", { code: "import tinya; tinya.VERSION" })).result, "'1.0'");
rmSync(wheels, { recursive: true });

const missing = tools.map((tool) => tool.name).filter((name) => !called.has(name));
assert.deepEqual(missing, []);

// Output comes while the code runs, and a call that is aborted stops it.
const heard = [];
const code = "import time\nfor n in range(3):\n    print('step', n, flush=True)\n    time.sleep(0.3)";
await client.callTool({ name: "run_code", arguments: { code } }, undefined, { onprogress: (progress) => heard.push(progress.message) });
assert.ok(heard.some((message) => message.includes("step 0")), JSON.stringify(heard));
const abort = new AbortController();
setTimeout(() => abort.abort(), 500);
await assert.rejects(client.callTool({ name: "run_code", arguments: { code: "import time; time.sleep(600)" } }, undefined, { signal: abort.signal }));
assert.equal((await call("run_code", { code: "1 + 1" })).result, "2");
await client.close();
