//! Messages on the stdin channel other than prompts: calls of tools, the standard input of a run, interrupts.
//!
//! The messages carry a secret prefix, a letter, and bytes in a buffer. `T` is a piece of the worker's control stream,
//! in both directions. To the kernel, `I` is a piece of input, `E` the end of the input, and `X` interrupts a run; from
//! the kernel, `A` requests the next piece of input, and `E` rejects more input.

use jupyter_protocol::Message;
use sandbox_engine::{FrameReader, Reply};
use serde::Deserialize;

/// The type of the kernel's messages. Messages to the kernel are replies to prompts, which servers forward.
pub(crate) const MESSAGE: &str = "sandbox_link";

/// Maximum size of a piece, in bytes.
pub(crate) const CHUNK_SIZE: usize = 256 << 10;

/// A piece of the control stream.
pub(crate) const CONTROL: &str = "T";

/// A piece of input.
pub(crate) const INPUT: &str = "I";

/// The end of the input.
pub(crate) const END: &str = "E";

/// An interrupt of the run with this id, and of no other.
pub(crate) const INTERRUPT: &str = "X";

/// A message of the kernel.
#[derive(Debug, PartialEq)]
pub(crate) enum StdinMessage {
    /// A piece of the control stream.
    Control(Vec<u8>),
    /// A request for more input.
    More,
    /// The end of the kernel's interest in input.
    Enough,
}

/// Only this field is parsed, whatever code has put into the message.
#[derive(Deserialize)]
struct RawStdinMessage {
    said: String,
}

/// Parses a message. Returns `None` for messages of other types or without the prefix.
pub(crate) fn parse(prefix: &str, message: &Message) -> Option<StdinMessage> {
    if message.header.msg_type != MESSAGE {
        return None;
    }
    let content: RawStdinMessage = serde_json::from_slice(&message.content.to_json()).ok()?;
    match content.said.strip_prefix(prefix)? {
        CONTROL => Some(StdinMessage::Control(message.buffers.concat())),
        "A" => Some(StdinMessage::More),
        END => Some(StdinMessage::Enough),
        _ => None,
    }
}

/// Reassembles the calls of tools from pieces. Other replies are an error: the kernel sends them as messages of its
/// own. Late calls of an earlier run are dropped.
pub(crate) fn tool_calls(
    frames: &mut FrameReader,
    piece: &[u8],
    run: i64,
) -> Result<Vec<Reply>, String> {
    frames.push(piece);
    let mut calls = Vec::new();
    while let Some(frame) = frames.next_frame().map_err(|error| error.to_string())? {
        match Reply::decode(frame).map_err(|error| error.to_string())? {
            call @ (Reply::ToolCall { id, .. }
            | Reply::ListTools { id, .. }
            | Reply::CancelTool { id, .. }) => {
                if id == run {
                    calls.push(call);
                }
            }
            _ => return Err("an unexpected message of the kernel".to_owned()),
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use jupyter_protocol::Session;
    use jupyter_protocol::content::{Content, Unknown};

    use super::*;

    #[test]
    fn messages_without_the_prefix_are_ignored() {
        let message = |kind: &str, text: &str| {
            let content = Unknown::new(kind, &serde_json::json!({"said": text})).unwrap();
            let mut message = Session::default().request(Content::Unknown(content));
            message.buffers = vec!["ab".into()];
            message
        };
        assert_eq!(
            parse("prefix:", &message(MESSAGE, "prefix:T")),
            Some(StdinMessage::Control(b"ab".to_vec()))
        );
        assert_eq!(parse("prefix:", &message(MESSAGE, "prefix:A")), Some(StdinMessage::More));
        assert_eq!(parse("prefix:", &message(MESSAGE, "prefix:E")), Some(StdinMessage::Enough));
        for (kind, text) in
            [(MESSAGE, "A"), (MESSAGE, "prefix:"), (MESSAGE, "prefix:X"), ("other", "prefix:A")]
        {
            assert_eq!(parse("prefix:", &message(kind, text)), None, "{kind} {text}");
        }
    }

    #[test]
    fn calls_are_reassembled_and_other_replies_rejected() {
        let call = Reply::ListTools { id: 1, call: 2 };
        let mut frame = Vec::new();
        call.encode(&mut frame).unwrap();
        let mut frames = FrameReader::new();
        let (first, second) = frame.split_at(5);
        assert_eq!(tool_calls(&mut frames, first, 1), Ok(Vec::new()));
        assert_eq!(tool_calls(&mut frames, second, 1), Ok(vec![call]));
        assert_eq!(tool_calls(&mut frames, &frame, 2), Ok(Vec::new()), "of the run before");
        let mut forged = Vec::new();
        Reply::Exit { id: 1, code: 0 }.encode(&mut forged).unwrap();
        tool_calls(&mut frames, &forged, 1).unwrap_err();
    }
}
