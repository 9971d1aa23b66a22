//! A cell with a gate, an upstream network for it, and servers.

use std::collections::HashMap;
use std::io;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use sandbox_core::{NetworkDenial, NetworkPolicy};
use sandbox_egress::{Gate, GateConfig, HostNetwork, Sockets, Upstream};
use sandbox_isolation::{Cell, CellLauncher, CellSpec, Resource, Rlimit, SpawnSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Names of a test, and a record of lookups. Connections are real.
#[derive(Debug, Default)]
pub(crate) struct TestNetwork {
    names: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    pub(crate) lookups: Mutex<Vec<String>>,
    pub(crate) dialled: Mutex<Vec<SocketAddr>>,
    /// The real address of every connection, whatever its destination.
    pub(crate) detour: Mutex<Option<SocketAddr>>,
    /// Addresses that count as this host's, besides its own.
    pub(crate) own: Mutex<Vec<IpAddr>>,
}

impl TestNetwork {
    /// Makes a name resolve to addresses.
    pub(crate) fn name(&self, name: &str, addresses: &[&str]) {
        self.names_in_turn(name, &[addresses]);
    }

    /// Makes a name resolve to the next addresses each time, until the last.
    pub(crate) fn names_in_turn(&self, name: &str, turns: &[&[&str]]) {
        let parse = |turn: &&[&str]| turn.iter().map(|text| text.parse().unwrap()).collect();
        let turns = turns.iter().map(parse).collect();
        self.names.lock().unwrap().insert(name.to_owned(), turns);
    }
}

/// Returns the network as the upstream of a gate.
#[derive(Clone, Debug)]
pub(crate) struct Shared(pub(crate) Arc<TestNetwork>);

#[async_trait::async_trait]
impl Upstream for Shared {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.0.lookups.lock().unwrap().push(name.to_owned());
        let mut names = self.0.names.lock().unwrap();
        let turns = names.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        if turns.len() > 1 { Ok(turns.remove(0)) } else { Ok(turns[0].clone()) }
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.0.dialled.lock().unwrap().push(to);
        let detour = *self.0.detour.lock().unwrap();
        let to = detour.unwrap_or_else(|| SocketAddr::new(to.ip(), listening_port(to.port())));
        HostNetwork.connect(to).await
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.0.own.lock().unwrap().contains(&address) || HostNetwork.is_own(address)
    }
}

/// A cell behind a gate.
pub(crate) struct GatedCell {
    pub(crate) cell: Cell,
    pub(crate) gate: Gate,
    pub(crate) network: Arc<TestNetwork>,
}

impl GatedCell {
    /// Allows these patterns, and denies those that start with an exclamation mark.
    pub(crate) async fn allowing(patterns: &[&str]) -> Self {
        let allow = patterns.iter().filter(|pattern| !pattern.starts_with('!'));
        let mut policy = NetworkPolicy::allowlist(allow).unwrap();
        let deny = patterns.iter().filter_map(|pattern| pattern.strip_prefix('!'));
        policy.deny = deny.map(|pattern| pattern.parse().unwrap()).collect();
        Self::with(policy, |_| {}).await
    }

    pub(crate) async fn with(policy: NetworkPolicy, set: impl FnOnce(&mut GateConfig)) -> Self {
        let launcher = CellLauncher::start().await.unwrap();
        // Some programs hold a thousand connections.
        let many = Rlimit::fixed(Resource::OpenFiles, 2048);
        let spec = CellSpec { gate: true, ..CellSpec::strict().limit(many) };
        let cell = launcher.cell(&spec).await.unwrap();
        let sockets = cell.take_gate().unwrap();
        let sockets = Sockets {
            connections: sockets.connections,
            dns_packets: sockets.dns_packets,
            dns_connections: sockets.dns_connections,
        };
        let network = Arc::new(TestNetwork::default());
        let mut config = GateConfig::new(policy);
        config.upstream = Arc::new(Shared(Arc::clone(&network)));
        set(&mut config);
        let gate = Gate::open(sockets, config).unwrap();
        Self { cell, gate, network }
    }

    /// Runs a Python program and returns its output, with error messages in it.
    pub(crate) async fn python(&self, script: &str) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let script = format!("import socket, ssl, time, threading\n{PRELUDE}\n{script}");
        let mut spec = SpawnSpec::new(["/usr/bin/python3", "-I", "-c", &script]);
        spec.stderr = Some(writer.try_clone().unwrap().into());
        spec.stdout = Some(writer.into());
        let process = self.cell.spawn(spec).await.unwrap();
        let output = tokio::task::spawn_blocking(move || {
            let mut output = Vec::new();
            reader.read_to_end(&mut output).unwrap();
            String::from_utf8_lossy(&output).trim_end().to_owned()
        });
        process.wait().await.unwrap();
        output.await.unwrap()
    }

    /// Returns the denials so far.
    pub(crate) fn denied(&self) -> Vec<String> {
        denied(&self.gate)
    }
}

/// Returns the denials so far as text: host, port, reason, the pattern that would allow it, count.
pub(crate) fn denied(gate: &Gate) -> Vec<String> {
    let show = |denial: &NetworkDenial| {
        let allow = denial.allow.as_deref().unwrap_or("nothing");
        format!("{denial} {} {allow} {}", denial.reason.as_str(), denial.count)
    };
    gate.denied_since(0).iter().map(show).collect()
}

const PRELUDE: &str = "
def attempt(what):
    # After a reset it depends on the moment which call reports it, and how: EPIPE, ECONNRESET, ENOTCONN.
    try: return what()
    except OSError as e: return 'ConnectionResetError' if e.errno in (32, 104, 107) else type(e).__name__
def fetch(host, port=80, name=None, more='', connection=None):
    def get():
        with connection or socket.create_connection((host, port), 5) as s:
            s.sendall(f'GET / HTTP/1.1\\r\\nHost: {name or host}\\r\\n{more}Connection: close\\r\\n\\r\\n'.encode())
            return s.makefile('rb').read().decode().rpartition('\\r\\n')[2] or 'nothing'
    return attempt(get)
def send(host, port, data=b'hello', connection=None):
    def talk():
        with connection or socket.create_connection((host, port), 5) as s:
            s.sendall(data); s.shutdown(socket.SHUT_WR)
            return s.makefile('rb').read().decode(errors='replace') or 'nothing'
    return attempt(talk)
def lookup(name):
    return attempt(lambda: socket.gethostbyname(name))
";

/// Returns an address of the host that no other test uses.
pub(crate) fn fresh_address() -> String {
    use std::sync::atomic::{AtomicU8, Ordering};
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let [low, high, ..] = process.to_le_bytes();
    format!("127.{}.{low}.{}", 64 | (high & 63), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the port on which a server really listens: low ports may need privileges.
fn listening_port(port: u16) -> u16 {
    if port < 1024 { port + 20_000 } else { port }
}

/// Answers every HTTP request on a connection with its own name and the requested host.
pub(crate) async fn http_server(address: &str, port: u16, own_name: &'static str) {
    serve(address, port, move |mut stream| async move {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read(&mut byte).await.unwrap_or(0) == 0 {
                return;
            }
            head.push(byte[0]);
        }
        let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{own_name}");
        let _ = stream.write_all(answer.as_bytes()).await;
    })
    .await;
}

/// Reads everything, then answers with the same bytes in capitals.
pub(crate) async fn echo_server(address: &str, port: u16) {
    serve(address, port, |mut stream| async move {
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        received.make_ascii_uppercase();
        let _ = stream.write_all(&received).await;
    })
    .await;
}

/// Serves every connection to an address of the host.
pub(crate) async fn serve<F>(
    address: &str,
    port: u16,
    mut each: impl FnMut(TcpStream) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((address, listening_port(port))).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(each(stream));
        }
    });
}
