//! Tests of TLS through the gate, with a real server: end to end, and only for allowed hosts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};

use crate::support::{GatedCell, fresh_address, serve};

/// Certificate for `a.example`, `b.example` and `evil.example`; used only in these tests.
const CERTIFICATE: &str = include_str!("server-certificate.pem");
const KEY: &str = include_str!("server-key.pem");

fn config() -> Arc<ServerConfig> {
    config_with(rustls::crypto::ring::default_provider())
}

/// A server whose only key exchange group is one that clients do not send at first: it requests a second ClientHello.
fn config_with_retry() -> Arc<ServerConfig> {
    let kx_groups = vec![rustls::crypto::ring::kx_group::SECP384R1];
    config_with(CryptoProvider { kx_groups, ..rustls::crypto::ring::default_provider() })
}

fn config_with(provider: CryptoProvider) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
}

/// Answers a request with the host that the ClientHello named.
fn answer(config: Arc<ServerConfig>, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut session = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut tls = Stream::new(&mut session, &mut stream);
    let mut request = [0; 1000];
    let read = tls.read(&mut request)?;
    assert!(request[..read].starts_with(b"GET /"));
    let name = tls.conn.server_name().unwrap_or("none").to_owned();
    tls.write_all(
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()).as_bytes(),
    )?;
    tls.conn.send_close_notify();
    tls.flush()
}

async fn serve_tls(address: &str, config: Arc<ServerConfig>) {
    serve(address, 443, move |stream| {
        let (config, stream) = (Arc::clone(&config), stream.into_std());
        async move {
            // Refused connections end during the handshake.
            let _ = tokio::task::spawn_blocking(move || answer(config, stream.unwrap())).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_second_client_hello_names_no_other_host() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", &address]).await;
    gated.network.name("a.example", &[&address]);
    serve_tls(&address, config_with_retry()).await;
    // ClientHellos are made without a connection, so that the second one can name another host. The server rejects one
    // with different random bytes, but has read its name by then.
    let script = format!(
        "
trusted = ssl.create_default_context(cadata='''{CERTIFICATE}''')
def get():
    with socket.create_connection(('a.example', 443), 10) as plain, trusted.wrap_socket(plain, server_hostname='a.example') as s:
        s.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
        return s.recv(1000).decode().rpartition('\\r\\n')[2]
def greeting(name):
    written = ssl.MemoryBIO()
    try: trusted.wrap_bio(ssl.MemoryBIO(), written, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError: pass
    return written.read()
def greet_twice(second):
    def talk():
        with socket.create_connection(('a.example', 443), 10) as s:
            s.sendall(greeting('a.example'))
            answer = s.recv(1000)
            s.sendall(greeting(second))
            return bytes.fromhex('cf21ad74e59a6111') in answer, s.recv(1000)[:1]
    return attempt(talk)
print(get(), greet_twice('a.example'), greet_twice('evil.example'))"
    );
    // The server answers the control case with an alert.
    let expected = "a.example (True, b'\\x15') ConnectionResetError";
    assert_eq!(gated.python(&script).await, expected);
    assert_eq!(gated.denied(), ["evil.example:443 wrong_host evil.example:443 1"]);
}

#[tokio::test]
async fn tls_is_end_to_end_and_only_for_allowed_names() {
    let address = fresh_address();
    let gated = GatedCell::allowing(&["a.example", "b.example", &address]).await;
    for name in ["a.example", "b.example", "evil.example"] {
        gated.network.name(name, &[&address]);
    }
    serve_tls(&address, config()).await;
    // The certificate is verified, so no intermediary can have answered.
    let script = format!(
        "
trusted = ssl.create_default_context(cadata='''{CERTIFICATE}''')
def get(host, name):
    def talk():
        with socket.create_connection((host, 443), 10) as plain, trusted.wrap_socket(plain, server_hostname=name) as s:
            s.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
            return s.recv(1000).decode().rpartition('\\r\\n')[2]
    return attempt(talk)
print(get('a.example', 'a.example'), get('b.example', 'b.example'), get('a.example', 'b.example'))
print(get('a.example', 'evil.example'), get('evil.example', 'evil.example'))
try: ssl.create_default_context().wrap_socket(socket.create_connection(('a.example', 443), 10), server_hostname='a.example')
except ssl.SSLCertVerificationError: print('not trusted')"
    );
    let output = gated.python(&script).await;
    let expected = "a.example b.example b.example\nConnectionResetError gaierror\nnot trusted";
    assert_eq!(output, expected);
    let denied = gated.denied();
    assert!(
        denied.contains(&"evil.example:443 wrong_host evil.example:443 1".to_owned()),
        "{denied:?}"
    );
}
