//! One HTTP request through the network gate, and the same one without it.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use code_sandboxes::{IsolationMode, NetworkPolicy, Sandbox};

use crate::row::{Bar, Row};
use crate::sample::{Measured, compare, text};
use crate::setup::Setup;

/// What the gate may add to a request, in milliseconds.
const ADDED: f64 = 1.0;

const NAME: &str = "bench.localhost";

/// Connects, asks and reads, as a program that asks once; the milliseconds of it.
const GET: &str = "
import http.client, time
def get(host, port):
    began = time.perf_counter()
    connection = http.client.HTTPConnection(host, port)
    connection.request('GET', '/')
    body = connection.getresponse().read()
    connection.close()
    assert body == b'hello', body
    return (time.perf_counter() - began) * 1e3
";

pub(crate) async fn get(setup: &Setup) -> Row {
    let measured = measure(setup).await;
    Row::compared("GET by name through the gate", measured, Bar::RatioAnd(1.0, ADDED))
}

async fn measure(setup: &Setup) -> Measured<(f64, crate::row::Yardstick)> {
    let port = serve()?;
    let policy = NetworkPolicy::allowlist([NAME, "127.0.0.1"]).map_err(text)?;
    let gated = Setup::builder(IsolationMode::Strict).network(policy).create().await;
    let gated = gated.map_err(text)?;
    let direct = Setup::builder(IsolationMode::Off).create().await.map_err(text)?;
    for sandbox in [&gated, &direct] {
        sandbox.run_code(GET).await.map_err(text)?;
    }
    let ours = async || once(&gated, NAME, port).await;
    let yardstick = async || once(&direct, "127.0.0.1", port).await;
    compare(setup.samples(), "GET to 127.0.0.1, isolation off", ours, yardstick).await
}

async fn once(sandbox: &Sandbox, host: &str, port: u16) -> Measured {
    let result = sandbox.run_code(format!("get({host:?}, {port})")).await.map_err(text)?;
    let took = result.text().and_then(|took| took.parse().ok());
    took.ok_or_else(|| format!("no answer: {:?}", result.code_error))
}

/// Answers every connection once, in a thread of its own.
fn serve() -> Measured<u16> {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let port = listener.local_addr().map_err(text)?.port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 1024];
            if stream.read(&mut head).is_ok_and(|count| count > 0) {
                // A side that has gone away fails its own sample.
                let _ = stream.write_all(ANSWER);
            }
        }
    });
    Ok(port)
}
