//! A cell with a gate, a world behind the gate, and servers in it.

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

/// Names of a test, and a record of what was asked for. Connections are real.
#[derive(Debug, Default)]
pub(crate) struct World {
    names: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    pub(crate) asked: Mutex<Vec<String>>,
    pub(crate) dialled: Mutex<Vec<SocketAddr>>,
    /// Where every connection really goes, whatever was asked for.
    pub(crate) detour: Mutex<Option<SocketAddr>>,
    /// Addresses that count as those of this host, beside its own.
    pub(crate) own: Mutex<Vec<IpAddr>>,
}

impl World {
    /// Makes a name lead to addresses.
    pub(crate) fn name(&self, name: &str, addresses: &[&str]) {
        self.names_in_turn(name, &[addresses]);
    }

    /// Makes a name lead to other addresses each time, as long as there are more.
    pub(crate) fn names_in_turn(&self, name: &str, turns: &[&[&str]]) {
        let parse = |turn: &&[&str]| turn.iter().map(|text| text.parse().unwrap()).collect();
        let turns = turns.iter().map(parse).collect();
        self.names.lock().unwrap().insert(name.to_owned(), turns);
    }
}

/// The world as something that a gate can hold.
#[derive(Clone, Debug)]
pub(crate) struct Shared(pub(crate) Arc<World>);

#[async_trait::async_trait]
impl Upstream for Shared {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.0.asked.lock().unwrap().push(name.to_owned());
        let mut names = self.0.names.lock().unwrap();
        let turns = names.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        if turns.len() > 1 { Ok(turns.remove(0)) } else { Ok(turns[0].clone()) }
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.0.dialled.lock().unwrap().push(to);
        let detour = *self.0.detour.lock().unwrap();
        let to = detour.unwrap_or_else(|| SocketAddr::new(to.ip(), behind(to.port())));
        HostNetwork.connect(to).await
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.0.own.lock().unwrap().contains(&address) || HostNetwork.is_own(address)
    }
}

/// A cell behind a gate.
pub(crate) struct Behind {
    pub(crate) cell: Cell,
    pub(crate) gate: Gate,
    pub(crate) world: Arc<World>,
}

impl Behind {
    /// Only these patterns, and none of those after an exclamation mark.
    pub(crate) async fn allowing(patterns: &[&str]) -> Self {
        let allow = patterns.iter().filter(|pattern| !pattern.starts_with('!'));
        let mut policy = NetworkPolicy::allowlist(allow).unwrap();
        let deny = patterns.iter().filter_map(|pattern| pattern.strip_prefix('!'));
        policy.deny = deny.map(|pattern| pattern.parse().unwrap()).collect();
        Self::with(policy, |_| {}).await
    }

    pub(crate) async fn with(policy: NetworkPolicy, set: impl FnOnce(&mut GateConfig)) -> Self {
        let maker = CellLauncher::start().await.unwrap();
        // Some programs hold a thousand connections.
        let many = Rlimit::fixed(Resource::OpenFiles, 2048);
        let spec = CellSpec { gate: true, ..CellSpec::strict().limit(many) };
        let cell = maker.cell(&spec).await.unwrap();
        let sockets = cell.take_gate().unwrap();
        let sockets = Sockets {
            connections: sockets.connections,
            dns_packets: sockets.dns_packets,
            dns_connections: sockets.dns_connections,
        };
        let world = Arc::new(World::default());
        let mut config = GateConfig::new(policy);
        config.upstream = Arc::new(Shared(Arc::clone(&world)));
        set(&mut config);
        let gate = Gate::open(sockets, config).unwrap();
        Self { cell, gate, world }
    }

    /// The output of a Python program, with what went wrong in it.
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

    /// What was refused so far.
    pub(crate) fn denied(&self) -> Vec<String> {
        denied(&self.gate)
    }
}

/// What was refused so far: host, port, reason, what would allow it, how often.
pub(crate) fn denied(gate: &Gate) -> Vec<String> {
    let show = |denial: &NetworkDenial| {
        let allow = denial.allow.as_deref().unwrap_or("nothing");
        format!("{denial} {} {allow} {}", denial.reason.as_str(), denial.count)
    };
    gate.denied_since(0).iter().map(show).collect()
}

const PRELUDE: &str = "
def attempt(what):
    # After a reset it depends on the moment which call hears of it, and how: EPIPE, ECONNRESET, ENOTCONN.
    try: return what()
    except OSError as e: return 'ConnectionResetError' if e.errno in (32, 104, 107) else type(e).__name__
def fetch(host, port=80, name=None, more='', connection=None):
    def get():
        with connection or socket.create_connection((host, port), 5) as s:
            s.sendall(f'GET / HTTP/1.1\\r\\nHost: {name or host}\\r\\n{more}Connection: close\\r\\n\\r\\n'.encode())
            return s.makefile('rb').read().decode().rpartition('\\r\\n')[2] or 'nothing'
    return attempt(get)
def say(host, port, data=b'hello', connection=None):
    def talk():
        with connection or socket.create_connection((host, port), 5) as s:
            s.sendall(data); s.shutdown(socket.SHUT_WR)
            return s.makefile('rb').read().decode(errors='replace') or 'nothing'
    return attempt(talk)
def lookup(name):
    return attempt(lambda: socket.gethostbyname(name))
";

/// An address of the host that nothing else of the tests uses.
pub(crate) fn fresh_address() -> String {
    use std::sync::atomic::{AtomicU8, Ordering};
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let [low, high, ..] = process.to_le_bytes();
    format!("127.{}.{low}.{}", 64 | (high & 63), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Where a server of a port really listens: not everybody may listen on low ones.
fn behind(port: u16) -> u16 {
    if port < 1024 { port + 20_000 } else { port }
}

/// Answers every HTTP request on a connection with its own name and the host that was asked for.
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

/// Answers with what it was told, in capitals, once it was told everything.
pub(crate) async fn echo_server(address: &str, port: u16) {
    serve(address, port, |mut stream| async move {
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told).await;
        told.make_ascii_uppercase();
        let _ = stream.write_all(&told).await;
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
    let listener = TcpListener::bind((address, behind(port))).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(each(stream));
        }
    });
}
