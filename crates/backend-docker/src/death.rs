//! Why a container ended that nobody here has ended, by what its engine remembers of it.
//!
//! Engines keep their last events (Docker 256 of them), so they are asked when there is something to ask, and not listened
//! to before: <https://docs.docker.com/reference/api/engine/version/v1.41/#tag/System/operation/SystemEvents>.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::Docker;
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::{Stream, StreamExt as _};
use sandbox_core::FailureKind;
use tokio::time::timeout;

/// How long an engine may take to say it. Whoever waits for a result waits for this as well.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long ago it can have been, in seconds. The clock of a distant engine may be another one.
const RECENT: u64 = 60;

/// What an engine has told of the end of a container.
#[derive(Debug, Default, PartialEq)]
struct Told {
    /// The signal that somebody has sent to it through the engine.
    killed: Option<String>,
    /// Its memory ran out: for the first process, or for another one.
    out_of_memory: bool,
    /// How its first process has ended.
    status: Option<String>,
}

/// Why the container has ended, as far as its engine tells in time.
pub(crate) async fn reason(docker: &Docker, name: &str) -> Option<(FailureKind, String)> {
    let mut told = Told::default();
    let listened = timeout(PATIENCE, async {
        let mut events = Box::pin(events(docker, name));
        while let Some(event) = events.next().await {
            told.take(event.ok()?);
            if told.status.is_some() {
                break;
            }
        }
        Some(())
    });
    match listened.await {
        Ok(None) if told == Told::default() => {
            let why = "the engine does not answer: it was stopped, or cannot be reached any more";
            Some((FailureKind::Terminated, why.to_owned()))
        }
        _ => told.reason(),
    }
}

fn events(
    docker: &Docker,
    name: &str,
) -> impl Stream<Item = Result<EventMessage, bollard::errors::Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let filters = HashMap::from([
        ("type", vec!["container"]),
        ("container", vec![name]),
        ("event", vec!["die", "kill", "oom"]),
    ]);
    let options = EventsOptionsBuilder::default()
        .since(&now.saturating_sub(RECENT).to_string())
        .until(&(now + RECENT).to_string())
        .filters(&filters);
    docker.events(Some(options.build()))
}

impl Told {
    fn take(&mut self, event: EventMessage) {
        let attribute = |name: &str| event.actor.as_ref()?.attributes.as_ref()?.get(name).cloned();
        match event.action.as_deref() {
            Some("kill") => self.killed = Some(attribute("signal").unwrap_or_default()),
            Some("oom") => self.out_of_memory = true,
            Some("die") => self.status = Some(attribute("exitCode").unwrap_or_default()),
            _ => {}
        }
    }

    fn reason(self) -> Option<(FailureKind, String)> {
        const KILLED: &str = "137";
        let status = self.status?;
        Some(match self.killed {
            Some(_) => {
                let why = "its container was ended through the engine, and not by this program";
                (FailureKind::Terminated, why.to_owned())
            }
            None if self.out_of_memory && status == KILLED => {
                (FailureKind::OutOfMemory, "the memory of its container ran out".to_owned())
            }
            None => {
                let why = format!("the first process of its container ended with status {status}");
                (FailureKind::Terminated, why)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::EventActor;

    fn told(events: &[(&str, &str, &str)]) -> Option<(FailureKind, String)> {
        let mut told = Told::default();
        for (action, name, value) in events {
            let attributes = HashMap::from([((*name).to_owned(), (*value).to_owned())]);
            let actor = EventActor { attributes: Some(attributes), ..EventActor::default() };
            told.take(EventMessage {
                action: Some((*action).to_owned()),
                actor: Some(actor),
                ..EventMessage::default()
            });
        }
        told.reason()
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
        ] {
            let (told, why) = told(events).unwrap();
            assert!(told == kind && why.contains(part), "{events:?}: {told} {why}");
        }
        assert_eq!(told(&[oom]), None, "it has not ended");
    }
}
