//! The MCP server: over standard input and output against an echo of the library that it is built on, and many sessions over
//! HTTP.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Instant;

use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock};
use rmcp::service::RequestContext;
use rmcp::transport::stdio;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::{Value, json};

use crate::row::{Bar, Row};
use crate::sample::{Measured, compare, since, text};
use crate::setup::Setup;

/// What makes this program the echo.
pub(crate) const ECHO_FLAG: &str = "--mcp-echo";

/// Milliseconds that a run may take above an echo.
const MAX_ABOVE_ECHO: f64 = 0.3;

/// Megabytes that the server may have more after many calls.
const MAX_GROWTH: f64 = 4.0;

/// Sessions at one time.
const SESSIONS: usize = 50;

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let name = "warm run_code(\"1+1\") over MCP, standard input and output";
    let measured = match pair(setup) {
        Ok((mut sandboxes, mut echo)) => {
            let ours = async || sandboxes.timed("run_code", &json!({"code": "1+1"}));
            let plain = async || echo.timed("echo", &json!({"code": "1+1"}));
            compare(setup.samples(), "rmcp's echo", ours, plain).await
        }
        Err(why) => Err(why),
    };
    let calls = if setup.quick { 1000 } else { 10_000 };
    let grown = format!("{calls} calls of run_code in a session, growth of the server");
    let name_of_sessions = format!("{SESSIONS} MCP sessions over HTTP at once, with a run each");
    vec![
        Row::compared(name, measured, Bar::RatioAnd(1.0, MAX_ABOVE_ECHO)),
        Row::plain(grown, "MB", growth(setup, calls), Bar::Below(MAX_GROWTH)),
        Row::information(name_of_sessions, sessions(setup)),
    ]
}

fn pair(setup: &Setup) -> Measured<(Client, Client)> {
    let own = std::env::current_exe().map_err(text)?;
    Ok((Client::start(&setup.cli, &["mcp"])?, Client::start(&own, &[ECHO_FLAG])?))
}

/// Megabytes that a server has more after that many calls.
fn growth(setup: &Setup, calls: usize) -> Measured {
    let mut client = Client::start(&setup.cli, &["mcp"])?;
    let mut run = |count: usize| {
        for _ in 0..count {
            client.timed("run_code", &json!({"code": "print('x' * 1000)"}))?;
        }
        resident(client.child.id())
    };
    let before = run(500)?;
    let after = run(calls)?;
    Ok((after - before) / 1e3)
}

/// Kilobytes of memory of a process.
fn resident(pid: u32) -> Measured {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(text)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.ok_or("its memory is not known")?.parse().map_err(text)
}

/// A session over standard input and output, as lines of JSON: nothing of a client's library is in the figures.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    last: u64,
}

impl Client {
    fn start(program: &Path, arguments: &[&str]) -> Measured<Self> {
        let mut command = Command::new(program);
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().map_err(text)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no streams".to_owned());
        };
        let mut client = Self { child, input, output: BufReader::new(output), last: 0 };
        client.ask("initialize", &greeting())?;
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(client)
    }

    fn send(&mut self, message: &Value) -> Measured<()> {
        self.input.write_all(format!("{message}\n").as_bytes()).map_err(text)
    }

    fn ask(&mut self, method: &str, params: &Value) -> Measured<Value> {
        self.last += 1;
        self.send(&request(self.last, method, params))?;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).map_err(text)? == 0 {
                return Err("the server has ended".to_owned());
            }
            let mut answer: Value = serde_json::from_str(&line).map_err(text)?;
            if answer["id"] == self.last {
                return Ok(answer["result"].take());
            }
        }
    }

    /// Calls a tool, and returns the milliseconds of the call.
    fn timed(&mut self, tool: &str, arguments: &Value) -> Measured {
        let began = Instant::now();
        let answer = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}))?;
        let took = since(began);
        if answer["content"].is_array() && answer["isError"] != true {
            return Ok(took);
        }
        Err(format!("{tool} failed: {answer}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn greeting() -> Value {
    json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    })
}

fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// Milliseconds until that many sessions have begun at once, have run code, and have ended.
fn sessions(setup: &Setup) -> Measured {
    let flags = ["mcp", "--http", "127.0.0.1:0", "--no-key", "--json", "--max-sandboxes", "64"];
    let command = Command::new(&setup.cli).args(flags).stdout(Stdio::piped()).spawn();
    let mut server = Server(command.map_err(text)?);
    let mut line = String::new();
    let output = server.0.stdout.take().ok_or("it has no output")?;
    BufReader::new(output).read_line(&mut line).map_err(text)?;
    let served: Value = serde_json::from_str(&line).map_err(text)?;
    let url = served["url"].as_str().unwrap_or_default();
    let address = url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    session(&address)?;
    let began = Instant::now();
    let all: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let address = address.clone();
            thread::spawn(move || session(&address))
        })
        .collect();
    for one in all {
        one.join().map_err(|_| "it panicked".to_owned())??;
    }
    Ok(since(began))
}

/// A server, which ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn session(address: &str) -> Measured<()> {
    let begun = exchange(address, "POST", None, &request(1, "initialize", &greeting()))?;
    let id = begun.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
    });
    let id = id.ok_or_else(|| format!("no session: {begun}"))?;
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    exchange(address, "POST", Some(&id), &notice)?;
    let call = json!({"name": "run_code", "arguments": {"code": "6*7"}});
    let answer = exchange(address, "POST", Some(&id), &request(2, "tools/call", &call))?;
    if !answer.contains("\"result\":\"42\"") {
        return Err(format!("no result: {answer}"));
    }
    exchange(address, "DELETE", Some(&id), &Value::Null).map(drop)
}

/// Sends one request over a connection of its own, and returns the whole answer.
fn exchange(address: &str, method: &str, session: Option<&str>, body: &Value) -> Measured<String> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let session =
        session.map(|id| format!("Mcp-Session-Id: {id}\r\nMcp-Protocol-Version: 2025-11-25\r\n"));
    let session = session.unwrap_or_default();
    let request = format!(
        "{method} /mcp HTTP/1.1\r\nHost: {address}\r\nAccept: application/json, text/event-stream\r\n{session}\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).map_err(text)?;
    stream.write_all(request.as_bytes()).map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    Ok(answer)
}

/// A server with one tool, which returns its argument.
#[derive(Clone)]
struct Echo;

impl ServerHandler for Echo {
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let given = arguments.get("code").and_then(Value::as_str).unwrap_or_default();
        Ok(CallToolResult::success(vec![ContentBlock::text(given)]).into())
    }
}

/// Serves the echo over standard input and output, until the client leaves.
pub(crate) async fn echo() -> Result<(), String> {
    let service = Echo.serve(stdio()).await.map_err(text)?;
    service.waiting().await.map(drop).map_err(text)
}
