//! Checks the first bytes of a connection against the rules.

use sandbox_core::DenialReason;

use crate::authority::is_plain;
use crate::client_hello::{self, ClientHello};
use crate::http::{RequestError, Requests};
use crate::retry::{Answer, ClientFollower, Next, ServerObserver};
use crate::rules::{Inspection, Rules};

/// Reason why the bytes of a connection are not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: DenialReason,
    /// The host that the bytes name, if any.
    pub(crate) host: Option<String>,
}

/// Returns a host only if it can be shown safely: code controls its bytes and its length.
fn printable(host: String) -> Option<String> {
    const MAX_SHOWN_SIZE: usize = 255;
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    (host.len() <= MAX_SHOWN_SIZE && host.bytes().all(plain)).then_some(host)
}

/// Inspects the bytes that a sandbox sends on one connection.
#[derive(Debug)]
pub(crate) struct Inspector {
    inspection: Inspection,
    port: u16,
    state: State,
    /// The server's response to the ClientHello.
    answer: Answer,
}

#[derive(Debug)]
enum State {
    /// Everything is forwarded.
    Open,
    /// The received part of the ClientHello.
    Tls(Vec<u8>),
    /// The bytes after the ClientHello, which may contain a second one.
    Greeted(ClientFollower),
    Http(Requests),
}

impl Inspector {
    pub(crate) fn new(inspection: Inspection, port: u16) -> Self {
        let state = match (inspection, port) {
            (Inspection::Nothing, _) => State::Open,
            (_, 80) => State::Http(Requests::new(port)),
            _ => State::Tls(Vec::new()),
        };
        Self { inspection, port, state, answer: Answer::default() }
    }

    /// Returns true once the host of the connection is known.
    pub(crate) fn is_decided(&self) -> bool {
        match &self.state {
            State::Open | State::Greeted(_) => true,
            State::Tls(_) => false,
            State::Http(requests) => requests.has_started(),
        }
    }

    /// Returns true once bytes can be forwarded without inspection.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Returns an observer of the server's bytes, if they matter.
    pub(crate) fn observer(&self) -> Option<ServerObserver> {
        matches!(self.state, State::Tls(_)).then(|| ServerObserver::new(self.answer.clone()))
    }

    /// Inspects received bytes, and appends the bytes to forward to `out`.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        rules: &Rules,
    ) -> Result<(), Refusal> {
        match &mut self.state {
            State::Open => out.extend(bytes),
            State::Tls(held) => {
                held.extend(bytes);
                let (host, end) = match client_hello::read_to_end(held) {
                    (ClientHello::Incomplete, _)
                        if held.len() <= client_hello::MAX_MESSAGE_SIZE =>
                    {
                        return Ok(());
                    }
                    (ClientHello::Incomplete | ClientHello::Invalid, _) => {
                        return Err(wrong_protocol());
                    }
                    (ClientHello::Whole(host), end) => (host, end),
                };
                let mut first = std::mem::take(held);
                self.check(host.as_deref(), rules)?;
                let rest = first.split_off(end);
                out.append(&mut first);
                self.state = State::Greeted(ClientFollower::new(self.answer.clone(), host));
                return self.push(&rest, out, rules);
            }
            State::Greeted(follow) => match follow.push(bytes, out) {
                Next::More => {}
                Next::Open => self.state = State::Open,
                Next::Invalid => return Err(wrong_protocol()),
                Next::Other(host) => {
                    self.check(host.as_deref(), rules)?;
                    // Refused even if both hosts are allowed: no real client names two hosts.
                    let host = host.and_then(printable);
                    return Err(Refusal { reason: DenialReason::WrongHost, host });
                }
            },
            State::Http(requests) => {
                let (inspection, port) = (self.inspection, self.port);
                let allowed = |host: &str| rules.check_named(inspection, host, port).is_ok();
                return requests.push(bytes, out, &allowed).map_err(|error| match error {
                    RequestError::Protocol => wrong_protocol(),
                    RequestError::NoHost => Refusal { reason: DenialReason::WrongHost, host: None },
                    RequestError::Host(host) => {
                        let reason = rules.check_named(inspection, &host, port).err();
                        let reason = reason.unwrap_or(DenialReason::WrongHost);
                        Refusal { reason, host: printable(host) }
                    }
                });
            }
        }
        Ok(())
    }

    fn check(&self, host: Option<&str>, rules: &Rules) -> Result<(), Refusal> {
        match host {
            // A wildcard rule must not allow a host that is not a name.
            Some(host) if !is_plain(host) => {
                Err(Refusal { reason: DenialReason::WrongHost, host: None })
            }
            Some(host) => rules
                .check_named(self.inspection, host, self.port)
                .map_err(|reason| Refusal { reason, host: printable(host.to_owned()) }),
            None if self.inspection == Inspection::NamesAllowed => {
                Err(Refusal { reason: DenialReason::WrongHost, host: None })
            }
            None => Ok(()),
        }
    }
}

fn wrong_protocol() -> Refusal {
    Refusal { reason: DenialReason::WrongProtocol, host: None }
}

#[cfg(test)]
mod tests {
    use sandbox_core::NetworkPolicy;

    use super::*;
    use crate::client_hello::tests::hello;

    fn push(inspection: Inspection, port: u16, bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut policy = NetworkPolicy::allowlist(["a.example"]).unwrap();
        if inspection == Inspection::NamesNotDenied {
            policy = NetworkPolicy::all();
            policy.deny = vec!["evil.example".parse().unwrap()];
        }
        let mut inspector = Inspector::new(inspection, port);
        let mut out = Vec::new();
        for byte in bytes {
            inspector.push(&[*byte], &mut out, &Rules::new(policy.clone()))?;
        }
        assert!(inspector.is_decided());
        Ok(out)
    }

    fn refusal(reason: DenialReason, host: &str) -> Result<Vec<u8>, Refusal> {
        let host = (!host.is_empty()).then(|| host.to_owned());
        Err(Refusal { reason, host })
    }

    #[test]
    fn tls_must_name_an_allowed_host() {
        let strict = Inspection::NamesAllowed;
        // Early data.
        let good = [hello("a.example"), b"\x17\x03\x03\x00\x02xy".to_vec()].concat();
        assert_eq!(push(strict, 443, &good).unwrap(), good);
        let wrong_host = DenialReason::WrongHost;
        let evil = hello("evil.example");
        assert_eq!(push(strict, 443, &evil), refusal(wrong_host, "evil.example"));
        assert_eq!(push(strict, 443, &hello("192.0.2.1")), refusal(wrong_host, ""));
        assert_eq!(push(strict, 443, b"SSH-2.0"), refusal(DenialReason::WrongProtocol, ""));
        let loose = Inspection::NamesNotDenied;
        let unnamed = hello("192.0.2.1");
        assert_eq!(push(loose, 443, &unnamed).unwrap(), unnamed);
        assert_eq!(push(loose, 443, &evil), refusal(DenialReason::Denied, "evil.example"));
    }

    /// Returns the bytes forwarded after the ClientHello, when the server answers byte by byte before the rest arrives.
    fn push_after(answer: &[u8], rest: &[u8]) -> Result<Vec<u8>, Refusal> {
        let rules = Rules::new(NetworkPolicy::allowlist(["a.example", "b.example"]).unwrap());
        let mut inspector = Inspector::new(Inspection::NamesAllowed, 443);
        let mut observer = inspector.observer().unwrap();
        let mut out = Vec::new();
        inspector.push(&hello("a.example"), &mut out, &rules)?;
        let passed = out.len();
        answer.iter().for_each(|byte| observer.push(&[*byte]));
        for byte in rest {
            inspector.push(&[*byte], &mut out, &rules)?;
        }
        Ok(out.split_off(passed))
    }

    #[test]
    fn a_second_client_hello_names_the_same_host() {
        let again = crate::retry::tests::hello_retry_request();
        let change = b"\x14\x03\x03\x00\x01\x01".to_vec();
        for before in [&b""[..], &change] {
            let second = |name| [before, &hello(name), b"the rest"].concat();
            let good = second("a.example");
            assert_eq!(push_after(&again, &good).unwrap(), good);
            let wrong_host = DenialReason::WrongHost;
            assert_eq!(
                push_after(&again, &second("evil.example")),
                refusal(wrong_host, "evil.example")
            );
            assert_eq!(push_after(&again, &second("b.example")), refusal(wrong_host, "b.example"));
            assert_eq!(push_after(&again, &second("192.0.2.1")), refusal(wrong_host, ""));
            // Before the server's answer, a second ClientHello is not expected.
            let early = refusal(DenialReason::WrongProtocol, "");
            assert_eq!(push_after(b"", &second("a.example")), early);
            assert_eq!(push_after(&again[..20], &second("evil.example")), early);
        }
        // Encrypted bytes, which may be any, follow every other answer.
        let last = crate::retry::tests::answer([9; 32]);
        let rest = [&change[..], b"\x16\x03\x03\x00\x05\x01\x00\x00\x01\x00"].concat();
        assert_eq!(push_after(&last, &rest).unwrap(), rest);
    }

    #[test]
    fn a_malformed_name_is_refused_and_not_shown() {
        let wrong_host = refusal(DenialReason::WrongHost, "");
        let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(10_000));
        assert_eq!(push(Inspection::NamesAllowed, 80, long.as_bytes()), wrong_host);
        let mut bytes = hello("aaaaaaaaaaaaa.example");
        let at = bytes.windows(13).position(|window| window == b"aaaaaaaaaaaaa").unwrap();
        bytes[at..at + 5].copy_from_slice(b"\x1b[2J\n");
        assert_eq!(push(Inspection::NamesAllowed, 443, &bytes), wrong_host);
        assert_eq!(push(Inspection::NamesNotDenied, 443, &bytes), wrong_host);
    }

    #[test]
    fn http_must_name_an_allowed_host() {
        let get = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        let strict = Inspection::NamesAllowed;
        assert_eq!(push(strict, 80, &get("a.example")).unwrap(), get("a.example"));
        let evil = refusal(DenialReason::WrongHost, "evil.example");
        assert_eq!(push(strict, 80, &get("evil.example")), evil);
        let loose = Inspection::NamesNotDenied;
        assert_eq!(push(loose, 80, &get("b.example")).unwrap(), get("b.example"));
        let denied = refusal(DenialReason::Denied, "evil.example");
        assert_eq!(push(loose, 80, &get("evil.example")), denied);
    }
}
