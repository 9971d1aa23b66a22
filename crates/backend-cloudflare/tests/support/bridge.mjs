// Serves Cloudflare's own bridge, from its package, in its own runtime. Its containers alone are not Cloudflare's: they are
// those of a server of the tests, whose address is the first argument. Prints the address of the bridge.

import { createRequire } from "node:module";
import path from "node:path";

const [server, key] = process.argv.slice(2);
const folder = process.cwd();
const require = createRequire(path.join(folder, "package.json"));
const { Miniflare } = require("miniflare");
const esbuild = require("esbuild");

// The methods of the durable object that the bridge calls (src/sandbox.ts of the package).
const worker = `
import { bridge, WarmPool } from "@cloudflare/sandbox/bridge";
import { DurableObject } from "cloudflare:workers";
export { WarmPool };

export class Sandbox extends DurableObject {
  // Letters of ids, whatever name the pool has for the container.
  get id() {
    return this.ctx.id.toString().replace(/[0189]/g, (digit) => "ghij"["0189".indexOf(digit)]);
  }
  at(rest) {
    return this.env.SERVER + "/v1/sandbox/" + this.id + rest;
  }
  headers(more) {
    return { Authorization: "Bearer " + this.env.SANDBOX_API_KEY, ...more };
  }
  async getState() {
    return { status: "running" };
  }
  async startAndWaitForPorts() {}
  async configure() {}
  async setSandboxName() {}
  async destroy() {
    await fetch(this.at(""), { method: "DELETE", headers: this.headers() });
  }
  async execWithSessionToken(command, _token, options) {
    return this.exec(command, options);
  }
  async exec(command, options = {}) {
    const body = { argv: ["bash", "-c", command], timeout_ms: options.timeout, cwd: options.cwd };
    const headers = this.headers({ "Content-Type": "application/json" });
    const answer = await fetch(this.at("/exec"), { method: "POST", headers, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(await answer.text());
    const decoder = new TextDecoder();
    const output = { stdout: "", stderr: "" };
    let rest = "";
    for await (const chunk of answer.body) {
      rest += decoder.decode(chunk, { stream: true });
      for (let end; (end = rest.indexOf("\\n\\n")) >= 0; rest = rest.slice(end + 2)) {
        const [, kind, data] = rest.slice(0, end).match(/^event: (.*)\\ndata: (.*)$/) ?? [];
        if (kind === "stdout" || kind === "stderr") {
          const text = new TextDecoder().decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
          if (options.onOutput) await options.onOutput(kind, text);
          else output[kind] += text;
        } else if (kind === "exit") {
          const result = { exitCode: JSON.parse(data).exit_code, ...output };
          if (options.onComplete) await options.onComplete(result);
          return result;
        } else if (kind === "error") {
          throw new Error(JSON.parse(data).error);
        }
      }
    }
    throw new Error("the answer has no end");
  }
  async writeFile(path, content, _options) {
    const body = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
    const answer = await fetch(this.at("/file" + encodeURI(path)), { method: "PUT", headers: this.headers(), body });
    if (!answer.ok) throw new Error(await answer.text());
    return { success: true };
  }
  async createSession({ id, cwd, env }) {
    const headers = this.headers({ "Content-Type": "application/json" });
    const body = JSON.stringify({ id, cwd, env });
    const answer = await fetch(this.at("/session"), { method: "POST", headers, body });
    if (!answer.ok) throw new Error(await answer.text());
    return { id };
  }
  async getSession(id) {
    return { id };
  }
  async deleteSession(id) {
    await fetch(this.at("/session/" + id), { method: "DELETE", headers: this.headers() });
    return { success: true, sessionId: id };
  }
  // proxyTerminal
  async fetch(request) {
    const query = new URL(request.url).searchParams;
    const size = "cols=" + query.get("cols") + "&rows=" + query.get("rows");
    const address = this.at("/pty?" + size + "&session=" + query.get("sessionId"));
    return fetch(address, { headers: this.headers({ Upgrade: "websocket" }) });
  }
}

export default bridge({ fetch: () => new Response("Not Found", { status: 404 }) });
`;

const built = await esbuild.build({
  stdin: { contents: worker, resolveDir: folder, loader: "js" },
  bundle: true,
  write: false,
  format: "esm",
  conditions: ["workerd", "worker", "import"],
  external: ["cloudflare:*", "node:*"],
  logLevel: "error",
});
const bridge = new Miniflare({
  modules: true,
  script: built.outputFiles[0].text,
  compatibilityDate: "2026-04-01",
  compatibilityFlags: ["nodejs_compat"],
  durableObjects: {
    Sandbox: { className: "Sandbox", useSQLite: true },
    WarmPool: { className: "WarmPool", useSQLite: true },
  },
  bindings: { SANDBOX_API_KEY: key, SERVER: server },
});
console.log((await bridge.ready).toString());
// Until the test ends this process by closing its input.
process.stdin.resume();
process.stdin.on("end", async () => {
  await bridge.dispose();
  process.exit(0);
});
