//! Why a container ended that nobody here has ended, by what its engine remembers of it.
//!
//! Engines keep their last events (Docker 256 of them), so they are asked when there is something to ask, and not listened
//! to before: <https://docs.docker.com/reference/api/engine/version/v1.41/#tag/System/operation/SystemEvents>.

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

/// How long an engine may take to say it. Whoever waits for a result waits for this as well.
const EVENTS_TIMEOUT: Duration = Duration::from_millis(500);

/// How long ago it can have been, in seconds, and how much the clock of the engine may have moved since it was looked at.
const EVENT_WINDOW_SECONDS: i64 = 60;

/// Signals with which engines end a container: `SIGTERM` and `SIGKILL`.
const FATAL_SIGNALS: [&str; 4] = ["9", "15", "KILL", "TERM"];

/// What an engine has told of the end of a container.
#[derive(Debug, Default, PartialEq)]
struct EngineEvents {
    /// Whether somebody has sent it what can end it, through the engine, and whether that always does.
    is_sent: bool,
    is_killed: bool,
    /// Its memory ran out: for the first process, or for another one. And when that was last.
    out_of_memory: bool,
    ran_out: Moment,
    /// When it has ended.
    ended: Moment,
    /// How its first process has ended.
    status: Option<String>,
}

/// When an engine says that something was, in nanoseconds.
type Moment = Option<i64>;

/// How long after its memory ran out a container can have ended of that: the engine hears of both by themselves.
const OOM_WINDOW: Duration = Duration::from_secs(10);

/// What is said of one whose first process has ended, before its status.
const ENDED_BY_ITSELF: &str = "the first process of its container ended with status ";

/// The status of what SIGKILL has ended, and of what SIGTERM has.
const KILLED: &str = "137";
const TERMINATED: &str = "143";

/// Whether the first process has ended by itself, as one does that cannot run.
pub(crate) fn is_by_itself((_, why): &(FailureKind, String)) -> bool {
    why.strip_prefix(ENDED_BY_ITSELF).is_some_and(|status| status != KILLED)
}

/// Why the container has ended, as far as its engine tells in time. The engine's clock is so many seconds ahead.
pub(crate) async fn query(
    docker: &Docker,
    name: &str,
    ahead: i64,
) -> Option<(FailureKind, String)> {
    let mut told = EngineEvents::default();
    let listened = timeout(EVENTS_TIMEOUT, async {
        let mut events = Box::pin(events(docker, name, ahead));
        while let Some(event) = events.next().await {
            told.take(event?);
            if told.status.is_some() {
                break;
            }
        }
        Ok(())
    });
    match listened.await {
        Ok(Err(error)) if told == EngineEvents::default() && !has_answered(&error) => {
            let why = "the engine does not answer: it was stopped, or cannot be reached any more";
            Some((FailureKind::ConnectionLost, why.to_owned()))
        }
        _ => told.reason(),
    }
}

/// Whether it was the engine that said no, or something that was not understood.
fn has_answered(error: &Cause) -> bool {
    matches!(error, Cause::DockerResponseServerError { .. } | Cause::JsonDataError { .. })
}

fn events(
    docker: &Docker,
    name: &str,
    ahead: i64,
) -> impl Stream<Item = Result<EventMessage, Cause>> {
    let now = Utc::now().timestamp().saturating_add(ahead);
    let filters = HashMap::from([
        ("type", vec!["container"]),
        ("container", vec![name]),
        // Podman calls one of them otherwise in what it is asked, and the same in what it answers.
        ("event", vec!["die", "died", "kill", "oom"]),
    ]);
    let options = EventsOptionsBuilder::default()
        .since(&now.saturating_sub(EVENT_WINDOW_SECONDS).max(0).to_string())
        .until(&now.saturating_add(EVENT_WINDOW_SECONDS).max(0).to_string())
        .filters(&filters);
    docker.events(Some(options.build()))
}

impl EngineEvents {
    fn take(&mut self, event: EventMessage) {
        let attribute = |name: &str| event.actor.as_ref()?.attributes.as_ref()?.get(name).cloned();
        match event.action.as_deref() {
            Some("kill") => {
                // The first process ends of no other. Podman does not say which one it was.
                let signal = attribute("signal");
                match signal {
                    None => self.is_killed = true,
                    Some(signal) => self.is_sent |= FATAL_SIGNALS.contains(&signal.as_str()),
                }
            }
            Some("oom") => (self.out_of_memory, self.ran_out) = (true, event.time_nano),
            Some("die" | "died") => {
                self.ended = event.time_nano;
                self.status = Some(attribute("exitCode").unwrap_or_default());
            }
            _ => {}
        }
    }

    fn reason(self) -> Option<(FailureKind, String)> {
        let of_memory = self.is_of_memory();
        let status = self.status?;
        // One that heeds no such signal ends later, and by itself.
        let is_of_signal = self.is_sent && [KILLED, TERMINATED].contains(&status.as_str());
        Some(match self.is_killed || is_of_signal {
            true => {
                let why = "its container was ended through the engine, and not by this program";
                (FailureKind::Terminated, why.to_owned())
            }
            false if of_memory && status == KILLED => {
                (FailureKind::OutOfMemory, "the memory of its container ran out".to_owned())
            }
            false => (FailureKind::Terminated, format!("{ENDED_BY_ITSELF}{status}")),
        })
    }

    /// Whether its memory ran out when it ended. Before, that was another process, which it has outlived.
    fn is_of_memory(&self) -> bool {
        let since = self.ran_out.zip(self.ended).map(|(ran_out, ended)| {
            Duration::from_nanos(u64::try_from(ended.saturating_sub(ran_out)).unwrap_or_default())
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

    fn told(events: &[(&str, &str, &str)]) -> Option<(FailureKind, String)> {
        let at_once: Vec<_> = events.iter().map(|event| (0, *event)).collect();
        told_at(&at_once)
    }

    /// The same, each after so many seconds.
    fn told_at(events: &[(i64, (&str, &str, &str))]) -> Option<(FailureKind, String)> {
        let mut told = EngineEvents::default();
        for (second, (action, name, value)) in events {
            let attributes = HashMap::from([((*name).to_owned(), (*value).to_owned())]);
            let actor = EventActor { attributes: Some(attributes), ..EventActor::default() };
            told.take(EventMessage {
                action: Some((*action).to_owned()),
                actor: Some(actor),
                time_nano: Some(1_800_000_000_000_000_000 + second * 1_000_000_000),
                ..EventMessage::default()
            });
        }
        told.reason()
    }

    /// Events are asked for by the engine's clock, which nobody sets by this one.
    #[tokio::test]
    async fn an_end_is_told_whatever_the_time_is_where_the_engine_is() {
        for ahead in [0, 7200, -7200] {
            let engine = FakeEngine::start(move |request, _| {
                let (path, query) = request.path.split_once('?').unwrap_or_default();
                let asked = |name: &str| {
                    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                    let (_, value) = pairs.find(|(known, _)| *known == name).unwrap();
                    value.parse::<i64>().unwrap()
                };
                let there = Utc::now().timestamp() + ahead;
                let event = json!({"Action": "die", "Actor": {"Attributes": {"exitCode": "3"}}});
                let is_recent = (asked("since")..=asked("until")).contains(&there);
                match path {
                    "events" if is_recent => Answer::now(200, format!("{event}\n").into()),
                    "events" => Answer::now(200, Value::String(String::new())),
                    _ => Answer::now(404, json!({"message": "No such container"})),
                }
            });
            let (kind, why) = query(&engine.docker(), "x", ahead).await.unwrap();
            assert!(kind == FailureKind::Terminated && why.ends_with('3'), "{ahead}: {kind} {why}");
            // The control: by the clock of this host it is not found.
            let otherwise = query(&engine.docker(), "x", 0).await;
            assert_eq!(otherwise.is_some(), ahead == 0, "{ahead}");
        }
    }

    #[test]
    fn what_came_long_before_is_not_why_it_has_ended() {
        let (oom, died) = (("oom", "", ""), ("die", "exitCode", "137"));
        let (kind, _) = told_at(&[(0, oom), (3, died)]).unwrap();
        assert_eq!(kind, FailureKind::OutOfMemory);
        // A process of the code, and then somebody on the engine's host.
        let (kind, why) = told_at(&[(0, oom), (30, died)]).unwrap();
        assert!(kind == FailureKind::Terminated && why.contains("status 137"), "{kind} {why}");
        let (kind, _) = told_at(&[(0, oom), (29, oom), (30, died)]).unwrap();
        assert_eq!(kind, FailureKind::OutOfMemory);
        // The first process heeds no SIGTERM.
        let sent = ("kill", "signal", "15");
        let (kind, why) = told_at(&[(0, sent), (20, ("die", "exitCode", "1"))]).unwrap();
        assert!(kind == FailureKind::Terminated && why.contains("status 1"), "{kind} {why}");
        let (_, why) = told_at(&[(0, sent), (10, ("kill", "signal", "9")), (10, died)]).unwrap();
        assert!(why.contains("through the engine"), "{why}");
    }

    #[test]
    fn the_end_is_told_by_what_came_before_it() {
        let (oom, died) = (("oom", "", ""), ("die", "exitCode", "137"));
        let killed = ("kill", "signal", "9");
        for (events, kind, part) in [
            (&[oom, died][..], FailureKind::OutOfMemory, "memory"),
            (&[killed, died], FailureKind::Terminated, "through the engine"),
            // A process of the code has been ended for its memory, a while before somebody ended all.
            (&[oom, killed, died], FailureKind::Terminated, "through the engine"),
            (&[oom, ("die", "exitCode", "1")], FailureKind::Terminated, "status 1"),
            (&[died], FailureKind::Terminated, "status 137"),
            (&[("kill", "signal", "10"), died], FailureKind::Terminated, "status 137"),
        ] {
            let (told, why) = told(events).unwrap();
            assert!(told == kind && why.contains(part), "{events:?}: {told} {why}");
        }
        assert_eq!(told(&[oom]), None, "it has not ended");
    }
}
