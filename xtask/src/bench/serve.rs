//! `sandboxes serve` through the official SDK of E2B, beside a server that answers at once; and its memory.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::e2b_stub;
use crate::interleaved::InterleavedBaseline;
use crate::memory::{Process, descendants_of, forget_peak_of, private_memory, status_of};
use crate::row::{Bar, Row};
use crate::sample::{Measured, compare, text};
use crate::setup::Setup;

const STUB: &str = "the SDK and a stub";

/// Times of the stub that a transfer may take: seven tenths of its rate.
const TRANSFER: f64 = 1.0 / 0.7;

/// Megabytes that the server may take more while large files go through it.
const MAX_TRANSFER_MEMORY: f64 = 32.0;

/// Megabytes that each of many sandboxes may have for itself, its part of the server included.
const MAX_EACH: f64 = 4.0;

/// Megabytes that the server and what all sandboxes share may grow by while sandboxes come and go.
const MAX_GROWTH: f64 = 4.0;

/// Sandboxes that come and go before memory is measured, and then.
const WARMING: usize = 50;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let calls = [
        ("serve: create and run_code", "create", setup.samples(), Bar::Ratio(1.5)),
        ("serve: warm run_code", "run", setup.samples(), Bar::Ratio(1.25)),
        ("serve: commands.run of `true`", "command", setup.samples(), Bar::Ratio(1.5)),
        ("serve: upload of 100 MiB", "upload", setup.large_samples(), Bar::Ratio(TRANSFER)),
        ("serve: download of 100 MiB", "download", setup.large_samples(), Bar::Ratio(TRANSFER)),
    ];
    let mut rows = Vec::new();
    for (name, call, samples, bar) in calls {
        rows.push(Row::compared(name, beside_stub(setup, call, samples).await, bar));
    }
    let below = |name: String, value, most| Row::plain(name, "MB", value, Bar::Below(most));
    let transfer = "serve: memory for an upload and a download".to_owned();
    rows.push(below(transfer, transfer_memory(setup), MAX_TRANSFER_MEMORY));
    let count = if setup.quick { 40 } else { 200 };
    let alive = format!("serve: {count} sandboxes alive, private memory of each");
    rows.push(below(alive, memory_of_each(setup, count), MAX_EACH));
    let count = if setup.quick { 100 } else { 1000 };
    let gone = format!("serve: memory that {count} sandboxes leave behind");
    rows.push(below(gone, growth(setup, count), MAX_GROWTH));
    rows
}

async fn beside_stub(
    setup: &Setup,
    call: &str,
    samples: (usize, usize),
) -> Measured<(f64, crate::row::Yardstick)> {
    let server = Server::start(setup)?;
    let stub = format!("http://{}", e2b_stub::start()?);
    let mut ours = client(setup, call, &server.url, &server.key)?;
    let mut theirs = client(setup, call, &stub, "e2b_any")?;
    compare(samples, STUB, async || ours.sample(), async || theirs.sample()).await
}

fn client(setup: &Setup, call: &str, url: &str, key: &str) -> Measured<InterleavedBaseline> {
    InterleavedBaseline::start(&setup.e2b_python, &["e2b", call, url, key])
}

fn transfer_memory(setup: &Setup) -> Measured {
    let server = Server::start(setup)?;
    let mut upload = client(setup, "upload", &server.url, &server.key)?;
    let mut download = client(setup, "download", &server.url, &server.key)?;
    forget_peak_of(server.pid())?;
    let before = status_of(server.pid(), "VmHWM:")?;
    upload.sample()?;
    download.sample()?;
    let peak = status_of(server.pid(), "VmHWM:")?;
    Ok(megabytes(peak.saturating_sub(before)))
}

/// What the processes of each sandbox have for themselves, and its part of what the server has grown by.
fn memory_of_each(setup: &Setup, count: usize) -> Measured {
    let server = Server::start(setup)?;
    server.used()?;
    let shared = descendants_of(server.pid())?;
    let before = private_memory(server.pid())?;
    let known: Vec<u32> = shared.keys().copied().collect();
    for _ in 0..count {
        server.used()?;
    }
    let own: BTreeMap<u32, Process> =
        descendants_of(server.pid())?.into_iter().filter(|(pid, _)| !known.contains(pid)).collect();
    if own.len() < count {
        return Err(format!("{} processes for {count} sandboxes", own.len()));
    }
    let private: u64 = own.values().map(Process::private).sum();
    let grown = private_memory(server.pid())?.saturating_sub(before);
    Ok(megabytes(private + grown) / count as f64)
}

/// What the server and the processes that outlive each sandbox have more after that many sandboxes.
fn growth(setup: &Setup, count: usize) -> Measured {
    let server = Server::start(setup)?;
    server.come_and_go(WARMING)?;
    let before = server.private()?;
    server.come_and_go(count)?;
    Ok(megabytes(server.private()?.saturating_sub(before)))
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// A server that ends with this.
struct Server {
    child: Child,
    url: String,
    key: String,
}

impl Server {
    fn start(setup: &Setup) -> Measured<Self> {
        let mut command = Command::new(&setup.cli);
        command.args(["serve", "--json", "--port", "0", "--max-sandboxes", "1000"]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(text)?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut told = String::new();
        let mut lines = BufReader::new(output);
        let told = loop {
            if lines.read_line(&mut told).map_err(text)? == 0 {
                return Err(format!("the server has not started: {told}"));
            }
            if let Ok(told) = serde_json::from_str::<Value>(&told) {
                break told;
            }
        };
        let value = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (url, key) = (value(&told["url"]), value(&told["environment"]["E2B_API_KEY"]));
        Ok(Self { child, url, key })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Private memory of the server and of its descendants.
    fn private(&self) -> Measured<u64> {
        // What the last sandbox leaves for a moment.
        std::thread::sleep(Duration::from_millis(500));
        let below: u64 = descendants_of(self.pid())?.values().map(Process::private).sum();
        Ok(private_memory(self.pid())? + below)
    }

    /// Creates a sandbox that has run something. Returns its id.
    fn used(&self) -> Measured<String> {
        let made =
            self.ask("POST", "/v2/sandboxes", "", r#"{"templateID":"base","timeout":600}"#)?;
        let made: Value = serde_json::from_str(&made).map_err(|_| made.clone())?;
        let told = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
        let id = told("sandboxID");
        let fields = format!(
            "E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49999\r\nX-Access-Token: {}\r\n",
            told("envdAccessToken")
        );
        let ran = self.ask("POST", "/execute", &fields, r#"{"code":"1+1"}"#)?;
        if ran.contains(r#""text":"2""#) { Ok(id) } else { Err(ran) }
    }

    fn come_and_go(&self, count: usize) -> Measured<()> {
        for _ in 0..count {
            let id = self.used()?;
            self.ask("DELETE", &format!("/sandboxes/{id}"), "", "")?;
        }
        Ok(())
    }

    /// Sends a request, and returns the body of the answer.
    fn ask(&self, method: &str, path: &str, fields: &str, body: &str) -> Measured<String> {
        let place = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(place).map_err(text)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(text)?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\n{fields}\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.key,
            body.len()
        );
        stream.write_all(request.as_bytes()).map_err(text)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(text)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        match head.split(' ').nth(1) {
            Some(status) if status.starts_with('2') => Ok(body.to_owned()),
            _ => Err(answer),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its sandboxes end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
