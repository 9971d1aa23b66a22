//! Changes of files, as the daemon reports them.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use sandbox_core::{Error, ErrorKind, Result, WatchEvent, WatchEventKind, unix_now};
use sandbox_engine::host::WatchStream;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Envd, Messages, connect, typed};
use crate::remote::SandboxHandle;

const OPERATION: &str = "watch_files";

/// A message about a watched directory.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Message {
    start: Option<Value>,
    filesystem: Option<Change>,
    /// The form of other servers, with the event one level deeper.
    event: Option<Box<Message>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Change {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Message {
    fn flat(self) -> Self {
        match self.event {
            Some(event) => *event,
            None => self,
        }
    }
}

/// Watches a directory. `shown` is the path in the events.
pub(super) async fn watch(
    envd: &Envd,
    shown: &str,
    path: &str,
    recursive: bool,
) -> Result<WatchStream> {
    let body = json!({"path": path, "recursive": recursive});
    let mut messages: Messages =
        envd.stream(OPERATION, "filesystem.Filesystem/WatchDir", &body).await?;
    // The watch begins with the first message.
    let mut early = VecDeque::new();
    loop {
        let Some(first) = messages.next().await else {
            let message = "the sandbox did not start to watch";
            return Err(Error::new(ErrorKind::Unavailable, OPERATION, message));
        };
        let first = connect::parse::<Message>(OPERATION, &first?)?.flat();
        if first.start.is_some() {
            break;
        }
        if let Some(change) = first.filesystem {
            early.push_back(change);
            break;
        }
    }
    let state = State {
        handle: Arc::clone(envd.handle()),
        changes: Box::pin(typed::<Message>(OPERATION, messages)),
        early,
        shown: shown.trim_end_matches('/').to_owned(),
        is_over: false,
    };
    Ok(Box::pin(stream::unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((event, state))
    })))
}

struct State {
    handle: Arc<SandboxHandle>,
    changes: std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Message>> + Send>>,
    early: VecDeque<Change>,
    shown: String,
    is_over: bool,
}

impl State {
    async fn next(&mut self) -> Option<Result<WatchEvent>> {
        if self.is_over {
            return None;
        }
        loop {
            let change = match self.early.pop_front() {
                Some(change) => change,
                None => match self.changes.next().await? {
                    Ok(message) => match message.flat().filesystem {
                        Some(change) => change,
                        None => continue,
                    },
                    Err(error) => {
                        self.is_over = true;
                        return Some(Err(self.handle.map_error(OPERATION, error).await));
                    }
                },
            };
            match event(&self.shown, &change) {
                Some(event) if event.path != self.shown => return Some(Ok(event)),
                Some(event) if event.kind == WatchEventKind::Delete => {
                    // The directory itself is gone, and nothing can follow.
                    self.is_over = true;
                    return Some(Ok(event));
                }
                // Its mode has changed.
                Some(_) => {}
                None => {}
            }
        }
    }
}

fn event(shown: &str, change: &Change) -> Option<WatchEvent> {
    let kind = match change.kind.as_str() {
        "EVENT_TYPE_CREATE" => WatchEventKind::Create,
        "EVENT_TYPE_WRITE" | "EVENT_TYPE_CHMOD" => WatchEventKind::Modify,
        // A renamed file is gone from its path; what appears elsewhere is reported by itself.
        "EVENT_TYPE_REMOVE" | "EVENT_TYPE_RENAME" => WatchEventKind::Delete,
        _ => return None,
    };
    let name = change.name.trim_start_matches("./").trim_matches('/');
    let path = match name {
        "" | "." => shown.to_owned(),
        _ if change.name.starts_with('/') => change.name.clone(),
        name => format!("{shown}/{name}"),
    };
    Some(WatchEvent { kind, path, timestamp: unix_now(), new_path: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_absolute_paths() {
        let read = |text: &str| serde_json::from_str::<Message>(text).unwrap().flat();
        assert!(read(r#"{"start":{}}"#).start.is_some());
        let change = read(r#"{"filesystem":{"name":"sub/a","type":"EVENT_TYPE_WRITE"}}"#);
        let found = event("/srv", &change.filesystem.unwrap()).unwrap();
        assert_eq!((found.kind, &*found.path), (WatchEventKind::Modify, "/srv/sub/a"));
        let gone = Change { name: "a".into(), kind: "EVENT_TYPE_RENAME".into() };
        assert_eq!(event("/srv", &gone).unwrap().kind, WatchEventKind::Delete);
        let new = Change { name: "a".into(), kind: "EVENT_TYPE_UNSPECIFIED".into() };
        assert!(event("/srv", &new).is_none());
    }
}
