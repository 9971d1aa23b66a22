//! Sessions: the ids of clients and kernels, which create messages.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{SecondsFormat, Utc};

use crate::content::Content;
use crate::header::{Header, Parent};
use crate::json::JsonMap;
use crate::message::Message;

/// The protocol version of this crate, as written into headers.
pub const PROTOCOL_VERSION: &str = "5.5";

/// One side of a conversation. Every message that it creates has a unique id.
///
/// ```
/// use jupyter_protocol::{ExecuteRequest, Session};
///
/// let session = Session::new("me");
/// let request = session.request(ExecuteRequest::new("1 + 1"));
/// assert_eq!(request.header.msg_type, "execute_request");
/// assert_eq!(request.header.session, session.id());
/// assert_ne!(request.header.msg_id, session.request(ExecuteRequest::new("2")).header.msg_id);
/// ```
#[derive(Debug)]
pub struct Session {
    id: String,
    username: String,
    sent: AtomicU64,
}

impl Session {
    /// Creates a session with a random id.
    #[must_use]
    pub fn new(username: impl Into<String>) -> Self {
        Self::with_id(random_hex(16), username)
    }

    /// Creates a session with a given id, to continue an earlier one. Message ids may repeat those of the earlier
    /// session.
    #[must_use]
    pub fn with_id(id: impl Into<String>, username: impl Into<String>) -> Self {
        Self { id: id.into(), username: username.into(), sent: AtomicU64::new(0) }
    }

    /// Returns the id of the session.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Creates a message without a parent.
    #[must_use]
    pub fn request(&self, content: impl Into<Content>) -> Message {
        self.message(Parent::None, content)
    }

    /// Creates a message for a subshell. Protocol 5.5.
    #[must_use]
    pub fn request_in(&self, subshell_id: &str, content: impl Into<Content>) -> Message {
        let mut message = self.request(content);
        message.header.subshell_id = Some(subshell_id.to_owned());
        message
    }

    /// Creates a reply to a message, addressed to its sender.
    #[must_use]
    pub fn reply(&self, request: &Message, content: impl Into<Content>) -> Message {
        let mut message = self.message(Parent::from_header(&request.header), content);
        message.identities.clone_from(&request.identities);
        message
    }

    /// Creates a message with any parent.
    #[must_use]
    pub fn message(&self, parent: Parent, content: impl Into<Content>) -> Message {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let header = Header {
            msg_id: format!("{}_{}_{number}", self.id, std::process::id()),
            session: self.id.clone(),
            username: self.username.clone(),
            date: Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true),
            msg_type: String::new(),
            version: PROTOCOL_VERSION.to_owned(),
            subshell_id: None,
            extra: JsonMap::new(),
        };
        Message::new(header, parent, content)
    }
}

impl Default for Session {
    fn default() -> Self {
        Self::new("jupyter-protocol")
    }
}

/// Returns random bytes in hexadecimal.
pub(crate) fn random_hex(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).expect("the system provides random numbers");
    random.iter().fold(String::with_capacity(bytes * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{InputReply, InputRequest, KernelInfoRequest};
    use bytes::Bytes;

    #[test]
    fn an_answer_names_what_it_answers() {
        let (client, kernel) = (Session::new("me"), Session::default());
        let mut request = client.request_in("sub", KernelInfoRequest::default());
        request.identities = vec![Bytes::from_static(b"client")];
        let reply = kernel.reply(&request, InputRequest::default());
        assert_eq!(reply.parent_id(), Some(request.header.msg_id.as_str()));
        assert_eq!(reply.parent.header().unwrap().subshell_id.as_deref(), Some("sub"));
        assert_eq!(reply.identities, request.identities);
        assert_eq!(reply.header.session, kernel.id());
        assert!(reply.header.sent_at().is_some());
        let again = client.message(reply.parent, InputReply::default());
        assert_eq!(again.header.msg_type, "input_reply");
    }
}
