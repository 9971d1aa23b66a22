//! Derives the reason of an unexpected container exit from the engine's recent events.
//!
//! Engines keep their last events (Docker 256 of them), so they are queried after an exit instead of followed all the time:
//! <https://docs.docker.com/reference/api/engine/version/v1.41/#tag/System/operation/SystemEvents>.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use chrono::Utc;
use futures_util::{Stream, StreamExt as _};
use sandbox_core::FailureKind;
use tokio::time::timeout;

/// Limits the query. The result of a run is delayed by it.
const EVENTS_TIMEOUT: Duration = Duration::from_millis(500);

/// Age of the oldest event that counts, and the drift of the engine's clock that is tolerated, in seconds.
const EVENT_WINDOW_SECONDS: i64 = 60;

/// Signals with which engines end a container: `SIGTERM` and `SIGKILL`.
const FATAL_SIGNALS: [&str; 4] = ["9", "15", "KILL", "TERM"];

/// Longest time between the last out-of-memory event and an exit that it caused: the engine learns of both separately.
const OOM_WINDOW: Duration = Duration::from_secs(10);

/// Statuses of a process that SIGKILL or SIGTERM has ended.
const SIGKILL_STATUS: &str = "137";
const SIGTERM_STATUS: &str = "143";

/// The reason of an exit that this process did not cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// Another client ended the container through the engine.
    KilledThroughEngine,
    /// The kernel ended the container for its memory.
    OutOfMemory,
    /// The init process ended with that status.
    InitExited { status: String },
    /// The engine does not answer any more.
    EngineGone,
    /// Another client paused the container, so that nothing in it can be ended.
    PausedFromOutside,
}

impl ExitReason {
    /// Returns the reason as the failure of a run.
    pub(crate) fn failure(&self) -> (FailureKind, String) {
        let (kind, message) = match self {
            Self::KilledThroughEngine => (
                FailureKind::Terminated,
                "its container was ended through the engine, and not by this program",
            ),
            Self::OutOfMemory => (FailureKind::OutOfMemory, "the memory of its container ran out"),
            Self::InitExited { status } => {
                let message =
                    format!("the first process of its container ended with status {status}");
                return (FailureKind::Terminated, message);
            }
            Self::EngineGone => (
                FailureKind::ConnectionLost,
                "the engine does not answer: it was stopped, or cannot be reached any more",
            ),
            Self::PausedFromOutside => (
                FailureKind::Terminated,
                "its container was paused from outside, where nothing can be ended",
            ),
        };
        (kind, message.to_owned())
    }

    /// Returns true for an init process that ended by itself, as one does that cannot run.
    pub(crate) fn is_by_itself(&self) -> bool {
        matches!(self, Self::InitExited { status } if status != SIGKILL_STATUS)
    }
}

/// Queries why a container has ended. Returns `None` when the engine does not tell in time. `clock_ahead` is how many seconds
/// the engine's clock is ahead of this host's.
pub(crate) async fn query(docker: &Docker, name: &str, clock_ahead: i64) -> Option<ExitReason> {
    let mut seen = EngineEvents::default();
    let collected = timeout(EVENTS_TIMEOUT, async {
        let mut events = Box::pin(events(docker, name, clock_ahead));
        while let Some(event) = events.next().await {
            seen.add(event?);
            if seen.status.is_some() {
                break;
            }
        }
        Ok(())
    });
    match collected.await {
        Ok(Err(error)) if seen == EngineEvents::default() && !is_answer(&error) => {
            Some(ExitReason::EngineGone)
        }
        _ => seen.reason(),
    }
}

/// Returns true if the engine answered, with a refusal or in a way that was not understood.
fn is_answer(error: &Cause) -> bool {
    matches!(error, Cause::DockerResponseServerError { .. } | Cause::JsonDataError { .. })
}

fn events(
    docker: &Docker,
    name: &str,
    clock_ahead: i64,
) -> impl Stream<Item = Result<EventMessage, Cause>> {
    let now = Utc::now().timestamp().saturating_add(clock_ahead);
    let filters = HashMap::from([
        ("type", vec!["container"]),
        ("container", vec![name]),
        // Podman filters by `died`, and reports `die`.
        ("event", vec!["die", "died", "kill", "oom"]),
    ]);
    let options = EventsOptionsBuilder::default()
        .since(&now.saturating_sub(EVENT_WINDOW_SECONDS).max(0).to_string())
        .until(&now.saturating_add(EVENT_WINDOW_SECONDS).max(0).to_string())
        .filters(&filters);
    docker.events(Some(options.build()))
}

/// Time of an event as the engine reports it, in nanoseconds.
type Timestamp = Option<i64>;

/// Events of one container before its exit.
#[derive(Debug, Default, PartialEq)]
struct EngineEvents {
    /// The engine sent a signal that can end the container.
    is_signalled: bool,
    /// The engine ended the container with a signal that it does not name.
    is_killed: bool,
    /// Memory ran out, for the init process or another one, and when it last did.
    out_of_memory: bool,
    last_oom: Timestamp,
    ended: Timestamp,
    /// Exit status of the init process.
    status: Option<String>,
}

impl EngineEvents {
    fn add(&mut self, event: EventMessage) {
        let attribute = |name: &str| event.actor.as_ref()?.attributes.as_ref()?.get(name).cloned();
        match event.action.as_deref() {
            // The init process ends by no other signal. Podman does not report which signal it was.
            Some("kill") => match attribute("signal") {
                None => self.is_killed = true,
                Some(signal) => self.is_signalled |= FATAL_SIGNALS.contains(&signal.as_str()),
            },
            Some("oom") => (self.out_of_memory, self.last_oom) = (true, event.time_nano),
            Some("die" | "died") => {
                self.ended = event.time_nano;
                self.status = Some(attribute("exitCode").unwrap_or_default());
            }
            _ => {}
        }
    }

    fn reason(self) -> Option<ExitReason> {
        let by_memory = self.is_by_memory();
        let status = self.status?;
        // An init process that ignores the signal ends later, by itself.
        let by_signal =
            self.is_signalled && [SIGKILL_STATUS, SIGTERM_STATUS].contains(&status.as_str());
        Some(if self.is_killed || by_signal {
            ExitReason::KilledThroughEngine
        } else if by_memory && status == SIGKILL_STATUS {
            ExitReason::OutOfMemory
        } else {
            ExitReason::InitExited { status }
        })
    }

    /// Returns true if memory ran out shortly before the exit. Longer before, it ran out for another process, which the
    /// container outlived.
    fn is_by_memory(&self) -> bool {
        let since = self.last_oom.zip(self.ended).map(|(last_oom, ended)| {
            Duration::from_nanos(u64::try_from(ended.saturating_sub(last_oom)).unwrap_or_default())
        });
        self.out_of_memory && since.is_none_or(|since| since <= OOM_WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_engine::{Answer, FakeEngine};
    use bollard::models::EventActor;
    use serde_json::{Value, json};

    fn failure_after(events: &[(&str, &str, &str)]) -> Option<(FailureKind, String)> {
        let at_once: Vec<_> = events.iter().map(|event| (0, *event)).collect();
        failure_after_timed(&at_once)
    }

    /// Takes each event with its second.
    fn failure_after_timed(events: &[(i64, (&str, &str, &str))]) -> Option<(FailureKind, String)> {
        let mut seen = EngineEvents::default();
        for (second, (action, name, value)) in events {
            let attributes = HashMap::from([((*name).to_owned(), (*value).to_owned())]);
            let actor = EventActor { attributes: Some(attributes), ..EventActor::default() };
            seen.add(EventMessage {
                action: Some((*action).to_owned()),
                actor: Some(actor),
                time_nano: Some(1_800_000_000_000_000_000 + second * 1_000_000_000),
                ..EventMessage::default()
            });
        }
        Some(seen.reason()?.failure())
    }

    /// Events are requested by the engine's clock, which may differ from the clock here.
    #[tokio::test]
    async fn a_reason_is_found_whatever_the_clock_of_the_engine_shows() {
        for ahead in [0, 7200, -7200] {
            let engine = FakeEngine::start(move |request, _| {
                let (path, query) = request.path.split_once('?').unwrap_or_default();
                let parameter = |name: &str| {
                    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                    let (_, value) = pairs.find(|(known, _)| *known == name).unwrap();
                    value.parse::<i64>().unwrap()
                };
                let there = Utc::now().timestamp() + ahead;
                let event = json!({"Action": "die", "Actor": {"Attributes": {"exitCode": "3"}}});
                let is_recent = (parameter("since")..=parameter("until")).contains(&there);
                match path {
                    "events" if is_recent => Answer::now(200, format!("{event}\n").into()),
                    "events" => Answer::now(200, Value::String(String::new())),
                    _ => Answer::now(404, json!({"message": "No such container"})),
                }
            });
            let reason = query(&engine.docker(), "x", ahead).await.unwrap();
            assert_eq!(reason, ExitReason::InitExited { status: "3".into() }, "{ahead}");
            // Control: the clock of this host finds it only where both clocks agree.
            let otherwise = query(&engine.docker(), "x", 0).await;
            assert_eq!(otherwise.is_some(), ahead == 0, "{ahead}");
        }
    }

    #[test]
    fn an_event_long_before_the_exit_is_not_its_reason() {
        let (oom, died) = (("oom", "", ""), ("die", "exitCode", "137"));
        let (kind, _) = failure_after_timed(&[(0, oom), (3, died)]).unwrap();
        assert_eq!(kind, FailureKind::OutOfMemory);
        // Memory ran out for a process of the code; later a user of the engine's host ended the container.
        let (kind, why) = failure_after_timed(&[(0, oom), (30, died)]).unwrap();
        assert!(kind == FailureKind::Terminated && why.contains("status 137"), "{kind} {why}");
        let (kind, _) = failure_after_timed(&[(0, oom), (29, oom), (30, died)]).unwrap();
        assert_eq!(kind, FailureKind::OutOfMemory);
        // The init process ignores SIGTERM.
        let sent = ("kill", "signal", "15");
        let (kind, why) =
            failure_after_timed(&[(0, sent), (20, ("die", "exitCode", "1"))]).unwrap();
        assert!(kind == FailureKind::Terminated && why.contains("status 1"), "{kind} {why}");
        let killed = ("kill", "signal", "9");
        let (_, why) = failure_after_timed(&[(0, sent), (10, killed), (10, died)]).unwrap();
        assert!(why.contains("through the engine"), "{why}");
    }

    #[test]
    fn a_reason_follows_from_the_events_before_the_exit() {
        let (oom, died) = (("oom", "", ""), ("die", "exitCode", "137"));
        let killed = ("kill", "signal", "9");
        for (events, kind, part) in [
            (&[oom, died][..], FailureKind::OutOfMemory, "memory"),
            (&[killed, died], FailureKind::Terminated, "through the engine"),
            // Memory ran out for a process of the code, before the container was killed.
            (&[oom, killed, died], FailureKind::Terminated, "through the engine"),
            (&[oom, ("die", "exitCode", "1")], FailureKind::Terminated, "status 1"),
            (&[died], FailureKind::Terminated, "status 137"),
            (&[("kill", "signal", "10"), died], FailureKind::Terminated, "status 137"),
        ] {
            let (found, why) = failure_after(events).unwrap();
            assert!(found == kind && why.contains(part), "{events:?}: {found} {why}");
        }
        assert_eq!(failure_after(&[oom]), None, "it has not ended");
    }
}
