//! Reports refused connections to the caller of a run or a command, and that there is no network.
//!
//! A program without network may try again for minutes before it reports a failure. So the caller gets one hint while the
//! program runs.

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

/// Delay of the first check of a run, and interval of the checks after it.
const FIRST_POLL_DELAY: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of bytes of each output stream that are scanned.
const MAX_SCANNED_BYTES: usize = 64 << 10;

/// Maximum length of a phrase, which may come in two chunks.
const MAX_PHRASE_LENGTH: usize = 48;

/// Phrases of programs that found no network.
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

/// Watches the network of a sandbox while code or a command runs in it.
pub(crate) struct DenialReporter {
    gate: Option<(Arc<dyn EgressFilter>, u64)>,
    closed: Option<ClosedNetwork>,
    /// The next check. `None`: there is nothing to check, or the hint was given.
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
    /// Number of attempts before that moment. `None`: not known yet.
    before: Option<u64>,
    hint: String,
    scanned: [ScannedOutput; 2],
}

/// One output stream, as far as it was scanned.
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

    /// Watches code. Most code is over before the kernel could be asked, and an exception names the network by itself. So
    /// only output of its programs counts, and attempts after the first check.
    pub(crate) fn of_code(attempts: Attempts, hint: String) -> Self {
        Self { attempts, before: None, hint, scanned: Default::default() }
    }

    fn is_in_output(&self) -> bool {
        self.scanned.iter().any(|scanned| scanned.found)
    }

    /// Returns true when something tried to leave. Where attempts cannot be counted, the output of programs decides.
    fn was_attempted(&self) -> bool {
        let Some(count) = self.attempts.count() else { return self.is_in_output() };
        match self.before {
            Some(before) if count > before => true,
            Some(_) => self.is_in_output() && self.attempts.has_ipv6(),
            None => self.is_in_output() && (count > 0 || self.attempts.has_ipv6()),
        }
    }

    /// Returns true when something tried to leave since the first check.
    fn was_attempted_meanwhile(&mut self) -> bool {
        if self.was_attempted() {
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

    fn has_nothing_to_report(&self) -> bool {
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

    /// Checks when the time has come, and returns a hint once.
    fn poll_hint(&mut self, cx: &mut Context<'_>) -> Option<String> {
        loop {
            if self.next.as_mut()?.as_mut().poll(cx).is_pending() {
                return None;
            }
            let closed = self.closed.as_mut();
            let hint = closed
                .and_then(|closed| closed.was_attempted_meanwhile().then(|| closed.hint.clone()));
            if let Some(hint) = hint.or_else(|| NetworkDenial::hint(&self.denied())) {
                self.next = None;
                self.reported = Some(hint.clone());
                return Some(hint);
            }
            self.next = Some(Box::pin(tokio::time::sleep(POLL_INTERVAL)));
        }
    }

    /// Returns the hint at the end of a run. For a run that succeeded only its own output counts.
    fn at_end(&self, failed: bool, denied: &[NetworkDenial]) -> Option<String> {
        if self.reported.is_some() {
            return self.reported.clone();
        }
        let closed = self
            .closed
            .as_ref()
            .filter(|one| (failed || one.is_in_output()) && one.was_attempted());
        let hint = closed.map(|closed| closed.hint.clone());
        hint.or_else(|| NetworkDenial::hint(denied).filter(|_| failed))
    }
}

/// The events of a run, with hints and refused connections added.
#[derive(Debug)]
pub(crate) struct DenialReportingStream<S> {
    inner: S,
    reporter: DenialReporter,
    failed: bool,
    run_id: String,
    /// The sequence number of the next event.
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
            EventKind::Finished(outcome) if !this.reporter.has_nothing_to_report() => {
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

/// Adds hints and refused connections to the events of a command.
pub(crate) fn report_denials(command: Command, reporter: DenialReporter) -> Command {
    if reporter.has_nothing_to_report() {
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
