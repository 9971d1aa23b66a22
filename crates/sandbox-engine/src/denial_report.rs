//! What is reported of the network to who runs something: what was refused, and that there is none.
//!
//! A program that meets a closed network may try again for minutes before it says so. So it is reported while it runs, once.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use sandbox_core::{Command, CommandEvent, Event, EventKind, NetworkDenial, OutputStream};
use tokio::time::Sleep;

use crate::attempts::Attempts;
use crate::network::EgressFilter;

/// Time after which a run is looked after for the first time, and between looks from then on.
const FIRST_POLL_DELAY: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Bytes of each output stream that are looked through.
const MAX_SCANNED_BYTES: usize = 64 << 10;

/// The most bytes of a phrase, which may come in two pieces.
const MAX_PHRASE_LENGTH: usize = 48;

/// Phrases of programs that meet a network which is closed.
const PHRASES: [&str; 15] = [
    "Network is unreachable",
    "network is unreachable",
    "Temporary failure in name resolution",
    "Temporary failure resolving",
    "Name or service not known",
    "Could not resolve host",
    "unable to resolve host",
    "bad address '",
    "failed to lookup address",
    "on 127.0.0.1:53:",
    "UnknownHostException",
    "getaddrinfo",
    "EAI_AGAIN",
    "ENOTFOUND",
    "ENETUNREACH",
];

/// Watches the network of a sandbox while something runs in it.
pub(crate) struct DenialReporter {
    gate: Option<(Arc<dyn EgressFilter>, u64)>,
    closed: Option<ClosedNetwork>,
    /// The next look. `None`: there is nothing to look for, or it was reported.
    next: Option<Pin<Box<Sleep>>>,
    reported: Option<String>,
}

impl fmt::Debug for DenialReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialReporter").field("closed", &self.closed).finish_non_exhaustive()
    }
}

/// A network that leads nowhere, from some moment on.
#[derive(Debug)]
pub(crate) struct ClosedNetwork {
    attempts: Attempts,
    /// Number of attempts before. `None`: not known.
    before: Option<u64>,
    hint: String,
    scanned: [ScannedOutput; 2],
}

/// The part of one output stream that was looked through.
#[derive(Debug, Default)]
struct ScannedOutput {
    looked_through: usize,
    end: Vec<u8>,
    found: bool,
}

impl ScannedOutput {
    fn push(&mut self, data: &[u8]) {
        let room = MAX_SCANNED_BYTES.saturating_sub(self.looked_through);
        let data = &data[..data.len().min(room)];
        if self.found || data.is_empty() {
            return;
        }
        self.looked_through += data.len();
        self.end.extend_from_slice(data);
        let text = String::from_utf8_lossy(&self.end);
        self.found = PHRASES.iter().any(|phrase| text.contains(phrase));
        self.end.drain(..self.end.len().saturating_sub(MAX_PHRASE_LENGTH));
    }
}

impl ClosedNetwork {
    pub(crate) fn from_now(attempts: Attempts, hint: String) -> Self {
        let before = Some(attempts.count().unwrap_or_default());
        Self { attempts, before, hint, scanned: Default::default() }
    }

    /// The same for code, most of which is over before the kernel has been asked: what it fails with says itself that it
    /// is about the network, so that only what its programs say counts, and attempts after the first look.
    pub(crate) fn of_code(attempts: Attempts, hint: String) -> Self {
        Self { attempts, before: None, hint, scanned: Default::default() }
    }

    fn is_said(&self) -> bool {
        self.scanned.iter().any(|scanned| scanned.found)
    }

    /// Tells that something tried to leave. Where nobody counts, programs are taken at their word.
    fn is_met(&self) -> bool {
        let Some(count) = self.attempts.count() else { return self.is_said() };
        match self.before {
            Some(before) if count > before => true,
            Some(_) => self.is_said() && self.attempts.has_ipv6(),
            None => self.is_said() && (count > 0 || self.attempts.has_ipv6()),
        }
    }

    /// The same while it runs, from the first look on.
    fn is_met_meanwhile(&mut self) -> bool {
        if self.is_met() {
            return true;
        }
        self.before = self.before.or_else(|| self.attempts.count());
        false
    }
}

impl DenialReporter {
    pub(crate) fn new(gate: Option<Arc<dyn EgressFilter>>, closed: Option<ClosedNetwork>) -> Self {
        let gate = gate.map(|gate| {
            let cursor = gate.cursor();
            (gate, cursor)
        });
        let watched = gate.is_some() || closed.is_some();
        let next = watched.then(|| Box::pin(tokio::time::sleep(FIRST_POLL_DELAY)));
        Self { gate, closed, next, reported: None }
    }

    fn has_nothing_to_tell(&self) -> bool {
        self.gate.is_none() && self.closed.is_none()
    }

    fn output(&mut self, stream: OutputStream, data: &[u8]) {
        if let Some(closed) = &mut self.closed {
            closed.scanned[usize::from(stream == OutputStream::Stderr)].push(data);
        }
    }

    fn denied(&self) -> Vec<NetworkDenial> {
        self.gate.as_ref().map(|(gate, cursor)| gate.denied_since(*cursor)).unwrap_or_default()
    }

    /// Looks when it is time, and gives what there is to tell, once.
    fn poll_hint(&mut self, cx: &mut Context<'_>) -> Option<String> {
        loop {
            if self.next.as_mut()?.as_mut().poll(cx).is_pending() {
                return None;
            }
            let closed = self.closed.as_mut();
            let hint =
                closed.and_then(|closed| closed.is_met_meanwhile().then(|| closed.hint.clone()));
            if let Some(hint) = hint.or_else(|| NetworkDenial::hint(&self.denied())) {
                self.next = None;
                self.reported = Some(hint.clone());
                return Some(hint);
            }
            self.next = Some(Box::pin(tokio::time::sleep(POLL_INTERVAL)));
        }
    }

    /// What the end tells, beside what was refused. What succeeded is reported of what it scanned itself.
    fn at_end(&self, failed: bool, denied: &[NetworkDenial]) -> Option<String> {
        if self.reported.is_some() {
            return self.reported.clone();
        }
        let closed = self.closed.as_ref().filter(|one| (failed || one.is_said()) && one.is_met());
        let hint = closed.map(|closed| closed.hint.clone());
        hint.or_else(|| NetworkDenial::hint(denied).filter(|_| failed))
    }
}

/// The events of a run, with what there is to tell of the network.
#[derive(Debug)]
pub(crate) struct DenialReportingStream<S> {
    inner: S,
    reporter: DenialReporter,
    failed: bool,
    run_id: String,
    /// The number of the next event.
    seq: u64,
}

impl<S> DenialReportingStream<S> {
    pub(crate) fn new(inner: S, reporter: DenialReporter) -> Self {
        Self { inner, reporter, failed: false, run_id: String::new(), seq: 0 }
    }
}

impl<S: Stream<Item = Event> + Unpin> Stream for DenialReportingStream<S> {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = &mut *self;
        let mut event = match this.inner.poll_next_unpin(cx) {
            Poll::Ready(Some(event)) => event,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => match this.reporter.poll_hint(cx) {
                Some(text) if this.seq > 0 => {
                    let kind = EventKind::Hint { text };
                    let (run_id, seq) = (this.run_id.clone(), this.seq);
                    this.seq += 1;
                    let timestamp = sandbox_core::unix_now();
                    return Poll::Ready(Some(Event { run_id, seq, timestamp, kind }));
                }
                _ => return Poll::Pending,
            },
        };
        if this.seq == 0 {
            this.run_id.clone_from(&event.run_id);
        }
        event.seq = this.seq;
        this.seq += 1;
        match &mut event.kind {
            EventKind::Output { stream, data } => this.reporter.output(*stream, data),
            EventKind::Error(_) => this.failed = true,
            EventKind::Finished(outcome) if !this.reporter.has_nothing_to_tell() => {
                outcome.network_denied = this.reporter.denied();
                let failed = this.failed
                    || outcome.failure.is_some()
                    || !matches!(outcome.exit_code, None | Some(0));
                if outcome.hint.is_none() {
                    outcome.hint = this.reporter.at_end(failed, &outcome.network_denied);
                }
            }
            _ => {}
        }
        Poll::Ready(Some(event))
    }
}

/// A command, with what there is to tell of the network among its events and in its end.
pub(crate) fn report_denials(command: Command, reporter: DenialReporter) -> Command {
    if reporter.has_nothing_to_tell() {
        return command;
    }
    let events = DenialReportingCommand { inner: command.events, reporter };
    Command { events: Box::pin(events), ..command }
}

struct DenialReportingCommand {
    inner: Pin<Box<dyn Stream<Item = CommandEvent> + Send>>,
    reporter: DenialReporter,
}

impl Stream for DenialReportingCommand {
    type Item = CommandEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<CommandEvent>> {
        let this = &mut *self;
        let mut event = match this.inner.poll_next_unpin(cx) {
            Poll::Ready(Some(event)) => event,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                return match this.reporter.poll_hint(cx) {
                    Some(text) => Poll::Ready(Some(CommandEvent::Hint { text })),
                    None => Poll::Pending,
                };
            }
        };
        match &mut event {
            CommandEvent::Output { stream, data } => this.reporter.output(*stream, data),
            CommandEvent::Finished(outcome) => {
                outcome.network_denied = this.reporter.denied();
                let failed = outcome.failure.is_some() || outcome.exit_code != 0;
                if outcome.hint.is_none() {
                    outcome.hint = this.reporter.at_end(failed, &outcome.network_denied);
                }
            }
            _ => {}
        }
        Poll::Ready(Some(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_in_two_pieces_and_not_for_ever() {
        let mut scanned = ScannedOutput::default();
        for piece in ["x".repeat(1000).as_str(), "curl: (6) Could not res", "olve host: a.example"]
        {
            scanned.push(piece.as_bytes());
        }
        assert!(scanned.found);
        let mut scanned = ScannedOutput::default();
        scanned.push(&vec![b'x'; MAX_SCANNED_BYTES]);
        scanned.push(b"EAI_AGAIN");
        assert!(!scanned.found);
        assert!(PHRASES.iter().all(|phrase| phrase.len() <= MAX_PHRASE_LENGTH));
    }
}
