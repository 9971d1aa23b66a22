//! Answers the DNS queries of a sandbox.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sandbox_core::{DenialReason, NetworkDenial};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::dns::{self, Answer, Parsed, Question};
use crate::gate::Shared;
use crate::rules::Source;

/// Maximum number of UDP queries that wait for the upstream; further ones are dropped, and clients retry.
const MAX_PENDING: usize = 64;

/// Maximum number of simultaneous TCP connections.
const MAX_CONNECTIONS: usize = 16;

/// Timeout for the next query on a TCP connection.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Verdict on a query: refused names are answered at once, allowed names need the upstream.
enum DnsVerdict {
    Answer(Vec<u8>),
    Resolve(Question, String),
    Ignore,
}

fn evaluate(shared: &Shared, packet: &[u8]) -> DnsVerdict {
    let question = match dns::parse(packet) {
        Parsed::Question(question) => question,
        Parsed::Refusal(answer) => return DnsVerdict::Answer(answer),
        Parsed::Nothing => return DnsVerdict::Ignore,
    };
    let Some(name) = question.name.clone() else {
        return DnsVerdict::Answer(question.answer(Answer::NoSuchName));
    };
    match shared.rules.check_name(&name, None) {
        Ok(()) => DnsVerdict::Resolve(question, name),
        Err(reason) => {
            let allow = (reason == DenialReason::NotListed).then(|| name.clone());
            record_denial(shared, &question, name, reason, allow);
            DnsVerdict::Answer(question.answer(Answer::NoSuchName))
        }
    }
}

/// Records a refused name. Only address queries count: resolvers send the other types on their own.
fn record_denial(
    shared: &Shared,
    question: &Question,
    host: String,
    reason: DenialReason,
    allow: Option<String>,
) {
    if question.kind == dns::A {
        shared.denials.add(NetworkDenial { host, port: None, reason, allow, count: 1 });
    }
}

async fn resolve(shared: &Shared, question: &Question, name: String) -> Vec<u8> {
    let found = match shared.resolver.resolve(&name).await {
        Ok(found) if found.is_empty() => Err(Answer::Empty),
        Ok(found) => Ok(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Answer::NoSuchName),
        Err(_) => Err(Answer::Failure),
    };
    let answer = match found {
        Err(answer) => answer,
        Ok(found) => match check_addresses(shared, &found) {
            Err((reason, address)) => {
                let allow = (reason != DenialReason::Denied).then(|| address.to_string());
                record_denial(shared, question, name, reason, allow);
                Answer::NoSuchName
            }
            Ok(()) if question.kind == dns::A => {
                shared.fake_ips().address(&name).map_or(Answer::Failure, Answer::Address)
            }
            Ok(()) => Answer::Empty,
        },
    };
    question.answer(answer)
}

/// Checks that a name has at least one address that the rules allow on some port.
fn check_addresses(shared: &Shared, found: &[IpAddr]) -> Result<(), (DenialReason, IpAddr)> {
    let mut first = None;
    for address in found.iter().map(IpAddr::to_canonical) {
        match shared.check_address(address, None, Source::Name) {
            Ok(()) => return Ok(()),
            Err(reason) => {
                first.get_or_insert((reason, address));
            }
        }
    }
    first.map_or(Ok(()), Err)
}

/// Answers UDP queries until the task is aborted.
pub(crate) async fn serve_packets(shared: Arc<Shared>, socket: Arc<UdpSocket>) {
    let mut waiting = JoinSet::new();
    let mut buffer = vec![0; dns::MAX_MESSAGE_SIZE + 1];
    loop {
        while waiting.try_join_next().is_some() {}
        let Ok((count, from)) = socket.recv_from(&mut buffer).await else {
            // The kernel reports an error of an earlier response here. Any other error would repeat without the pause.
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        match evaluate(&shared, &buffer[..count]) {
            DnsVerdict::Answer(answer) => drop(socket.send_to(&answer, from).await),
            DnsVerdict::Resolve(question, name) if waiting.len() < MAX_PENDING => {
                let (shared, socket) = (Arc::clone(&shared), Arc::clone(&socket));
                waiting.spawn(async move {
                    let answer = resolve(&shared, &question, name).await;
                    let _ = socket.send_to(&answer, from).await;
                });
            }
            DnsVerdict::Resolve(..) | DnsVerdict::Ignore => {}
        }
    }
}

/// Answers TCP queries until the task is aborted.
pub(crate) async fn serve_connections(shared: Arc<Shared>, listener: TcpListener) {
    let mut open = JoinSet::new();
    loop {
        if open.len() >= MAX_CONNECTIONS {
            open.join_next().await;
        }
        while open.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                open.spawn(async move { serve_connection(&shared, stream).await });
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve_connection(shared: &Shared, mut stream: TcpStream) -> io::Result<()> {
    loop {
        let packet = timeout(READ_TIMEOUT, read_message(&mut stream)).await??;
        let answer = match evaluate(shared, &packet) {
            DnsVerdict::Answer(answer) => answer,
            DnsVerdict::Resolve(question, name) => resolve(shared, &question, name).await,
            DnsVerdict::Ignore => return Ok(()),
        };
        let length = u16::try_from(answer.len()).unwrap_or(0).to_be_bytes();
        timeout(READ_TIMEOUT, stream.write_all(&[&length[..], &answer].concat())).await??;
    }
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > dns::MAX_MESSAGE_SIZE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut packet = vec![0; length];
    stream.read_exact(&mut packet).await?;
    Ok(packet)
}
