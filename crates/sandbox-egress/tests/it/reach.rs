//! Tests that allowed hosts are reached as if there were no gate, and that refusals are reported.

use std::io::Read as _;
use std::time::{Duration, Instant};

use sandbox_core::NetworkPolicy;
use sandbox_isolation::SpawnSpec;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{GatedCell, echo_server, fresh_address, http_server, serve};

#[tokio::test]
async fn an_allowed_name_is_reached_on_every_port() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", &address]).await;
    gated.network.name("a.example", &[&address]);
    http_server(&address, 80, "a").await;
    echo_server(&address, 5432).await;
    let script = "print(fetch('a.example'), send('A.Example.', 5432), lookup('a.example'))";
    assert_eq!(gated.python(script).await, "a HELLO 198.18.0.2");
    let tcp_question = "
import os
question = b'\\xab\\xcd\\x01\\x00\\x00\\x01' + bytes(6) + b'\\x01a\\x07example\\x00\\x00\\x01\\x00\\x01'
with socket.create_connection(('127.0.0.1', 53), 5) as s:
    for n in range(3):
        s.sendall(len(question).to_bytes(2, 'big') + question)
        answer = s.recv(2); answer = s.recv(int.from_bytes(answer, 'big'))
        print(answer[-4:] == bytes([198, 18, 0, 2]), end=' ')";
    assert_eq!(gated.python(tcp_question).await, "True True True");
    assert_eq!(gated.denied(), [""; 0]);
}

#[tokio::test]
async fn other_names_do_not_exist_and_are_not_looked_up() {
    let gated = GatedCell::allowing(&["a.example:443", "*.b.example"]).await;
    gated.network.name("evil.example", &["8.8.8.8"]);
    let began = Instant::now();
    let script = "
for name in 'c2VjcmV0.evil.example', 'evil.example', 'b.example', 'x.a.example', 'missing.b.example':
    print(lookup(name))";
    assert_eq!(gated.python(script).await, ["gaierror"; 5].join("\n"));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(*gated.network.lookups.lock().unwrap(), ["missing.b.example"]);
    assert_eq!(
        gated.denied(),
        [
            "c2vjcmv0.evil.example not_listed c2vjcmv0.evil.example 1",
            "evil.example not_listed evil.example 1",
            "b.example not_listed b.example 1",
            "x.a.example not_listed x.a.example 1",
        ]
    );
}

#[tokio::test]
async fn the_port_of_a_rule_counts() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example:8080", &address]).await;
    gated.network.name("a.example", &[&address]);
    for port in [8080, 8081] {
        echo_server(&address, port).await;
    }
    let script = "print(send('a.example', 8080), send('a.example', 8081))";
    assert_eq!(gated.python(script).await, "HELLO ConnectionResetError");
    assert_eq!(gated.denied(), ["a.example:8081 not_listed a.example:8081 1"]);
}

#[tokio::test]
async fn private_addresses_need_a_rule_of_their_own() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", "*.b.example"]).await;
    gated.network.name("a.example", &[&address]);
    for (name, to) in [
        ("metadata.b.example", "169.254.169.254"),
        ("six.b.example", "fd00:ec2::254"),
        ("mapped.b.example", "::ffff:127.0.0.1"),
        ("wrapped.b.example", "2002:7f00:1::1"),
    ] {
        gated.network.name(name, &[to]);
    }
    echo_server(&address, 8080).await;
    let script = "
for name in 'a', 'metadata.b', 'six.b', 'mapped.b', 'wrapped.b':
    print(send(name + '.example', 8080), end=' ')";
    assert_eq!(gated.python(script).await, ["gaierror"; 5].join(" "));
    assert!(gated.network.dialled.lock().unwrap().is_empty());
    let denied = gated.denied();
    assert_eq!(denied[0], format!("a.example private_address {address} 1"));
    assert_eq!(denied[1], "metadata.b.example private_address 169.254.169.254 1");
    assert_eq!(denied.len(), 5);
}

#[tokio::test]
async fn literal_addresses_need_a_rule() {
    let gated = GatedCell::allowing(&["a.example", "203.0.113.0/24:80"]).await;
    let script = "
for host, port in ('198.51.100.1', 80), ('169.254.169.254', 80), ('2852039166', 80), ('0xA9FEA9FE', 80), \
                  ('203.0.113.9', 81), ('198.18.7.7', 80), ('10.0.0.1', 22), ('172.17.0.1', 2375):
    print(send(host, port), end=' ')";
    assert_eq!(gated.python(script).await, ["ConnectionResetError"; 8].join(" "));
    assert!(gated.network.dialled.lock().unwrap().is_empty());
    assert_eq!(
        gated.denied(),
        [
            "198.51.100.1:80 private_address 198.51.100.1:80 1",
            "169.254.169.254:80 private_address 169.254.169.254:80 3",
            "203.0.113.9:81 private_address 203.0.113.9:81 1",
            "198.18.7.7:80 not_listed nothing 1",
            "10.0.0.1:22 private_address 10.0.0.1:22 1",
            "172.17.0.1:2375 private_address 172.17.0.1:2375 1",
        ]
    );
}

#[tokio::test]
async fn deny_wins() {
    let address = fresh_address();
    let other = fresh_address();
    let gated = GatedCell::allowing(&[
        "*.example.com",
        "127.0.0.0/8",
        "!evil.example.com",
        "!half.example.com:8081",
        &format!("!{other}"),
    ])
    .await;
    for name in ["good", "evil", "half"] {
        gated.network.name(&format!("{name}.example.com"), &[&address]);
    }
    gated.network.name("away.example.com", &[&other]);
    for port in [8080, 8081] {
        echo_server(&address, port).await;
    }
    let script = "
for name, port in ('good', 8080), ('evil', 8080), ('half', 8080), ('half', 8081), ('away', 8080):
    print(send(name + '.example.com', port), end=' ')";
    let expected = "HELLO gaierror HELLO ConnectionResetError gaierror";
    assert_eq!(gated.python(script).await, expected);
    assert_eq!(
        gated.denied(),
        [
            "evil.example.com denied nothing 1",
            "half.example.com:8081 denied nothing 1",
            "away.example.com denied nothing 1",
        ]
    );
}

#[tokio::test]
async fn mode_all_is_the_public_internet() {
    let address = fresh_address();
    let mut policy = NetworkPolicy::all();
    policy.allow = vec![address.parse().unwrap()];
    policy.deny = vec!["evil.example".parse().unwrap()];
    let gated = GatedCell::with(policy, |_| {}).await;
    gated.network.name("any.example", &[&address]);
    gated.network.name("inside.example", &["192.168.0.1"]);
    http_server(&address, 80, "any").await;
    let script = "
print(fetch('any.example'), fetch('evil.example'), fetch('inside.example'), lookup('missing.example'), \
      fetch('any.example', name='evil.example'), send('10.0.0.1', 80))";
    let expected = "any gaierror gaierror gaierror ConnectionResetError ConnectionResetError";
    assert_eq!(gated.python(script).await, expected);
    assert_eq!(
        gated.denied(),
        [
            "evil.example denied nothing 1",
            "inside.example private_address 192.168.0.1 1",
            "evil.example:80 denied nothing 1",
            "10.0.0.1:80 private_address 10.0.0.1:80 1",
        ]
    );
}

#[tokio::test]
async fn each_side_ends_on_its_own_and_nothing_is_lost() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", &address]).await;
    gated.network.name("a.example", &[&address]);
    const SIZE: usize = 20 << 20;
    serve(&address, 8080, |mut stream| async move {
        // Ends its own direction first, and reads only then.
        let (mut from, mut to) = stream.split();
        to.write_all(&vec![b'x'; SIZE]).await.unwrap();
        to.shutdown().await.unwrap();
        let mut received = Vec::new();
        from.read_to_end(&mut received).await.unwrap();
        assert_eq!(received.len(), SIZE);
    })
    .await;
    let script = format!(
        "
s = socket.create_connection(('a.example', 8080), 20)
time.sleep(.2)
print(len(s.makefile('rb').read()), end=' ')
s.sendall(b'y' * {SIZE}); s.shutdown(socket.SHUT_WR)
print(s.recv(1))"
    );
    assert_eq!(gated.python(&script).await, format!("{SIZE} b''"));
}

#[tokio::test]
async fn a_host_that_is_down_is_no_denial() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", &address]).await;
    gated.network.name("a.example", &[&address]);
    assert_eq!(gated.python("print(send('a.example', 8080))").await, "ConnectionResetError");
    assert_eq!(gated.denied(), [""; 0]);
}

#[tokio::test]
async fn the_next_address_is_tried() {
    let (down, up) = (fresh_address(), fresh_address());
    let gated = GatedCell::allowing(&["a.example", "127.0.0.0/8"]).await;
    gated.network.name("a.example", &["::1", &down, &up]);
    echo_server(&up, 8080).await;
    assert_eq!(gated.python("print(send('a.example', 8080))").await, "HELLO");
}

#[tokio::test]
async fn a_gate_that_is_gone_is_closed() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", &address]).await;
    gated.network.name("a.example", &[&address]);
    echo_server(&address, 8080).await;
    assert_eq!(gated.python("print(send('a.example', 8080))").await, "HELLO");
    gated.gate.close();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let script = "print(send('198.18.0.2', 8080), lookup('a.example'))";
    assert_eq!(gated.python(script).await, "ConnectionRefusedError gaierror");
}

#[tokio::test]
async fn pending_connections_are_reported_too() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["203.0.113.5:8080", &address]).await;
    echo_server(&address, 8080).await;
    *gated.network.detour.lock().unwrap() = Some(format!("{address}:8080").parse().unwrap());
    let (mut reader, writer) = std::io::pipe().unwrap();
    let script = "
import os, socket
refused = [socket.create_connection(('203.0.113.5', port)) for port in [80] * 300 + [81]]
allowed = socket.create_connection(('203.0.113.5', 8080))
os.write(1, b'.')
allowed.sendall(b'hello'); allowed.shutdown(socket.SHUT_WR); print(allowed.recv(5).decode())";
    let mut spec = SpawnSpec::new(["/usr/bin/python3", "-I", "-c", script]);
    spec.stdout = Some(writer.into());
    let process = gated.cell.spawn(spec).await.unwrap();
    // No other task runs here meanwhile, so the connections stay in the queue.
    reader.read_exact(&mut [0]).unwrap();
    // More connections than one batch accepts.
    let expected = [(80, 300), (81, 1)].map(|(port, times)| {
        let place = format!("203.0.113.5:{port}");
        format!("{place} private_address {place} {times}")
    });
    let later = gated.gate.mark();
    assert_eq!(gated.denied(), expected);
    assert_eq!(gated.gate.denied_since(later), [], "they came before it");
    process.wait().await.unwrap();
    let mut output = String::new();
    reader.read_to_string(&mut output).unwrap();
    assert_eq!((output.as_str(), gated.denied()), ("HELLO\n", expected.to_vec()));
}
