//! What travels on the stdin channel beside questions: calls of tools, the standard input of a run, interrupts.
//!
//! Messages of ours carry a prefix that no code was told, a letter, and bytes in a buffer. `T` is a piece of the worker's
//! control stream, both ways. To the kernel, `I` is a piece of input, `E` its end, and `X` interrupts a run; from it, `A`
//! asks for the next piece and `E` wants no more.

use jupyter_protocol::Message;
use sandbox_engine::{FrameReader, Reply};
use serde::Deserialize;

/// The type of the kernel's messages. To the kernel they are answers to questions, which servers let through.
pub(crate) const MESSAGE: &str = "sandbox_link";

/// The longest piece that is sent at once.
pub(crate) const CHUNK_SIZE: usize = 256 << 10;

/// A piece of the control stream.
pub(crate) const CONTROL: &str = "T";

/// A piece of input.
pub(crate) const INPUT: &str = "I";

/// The end of the input.
pub(crate) const END: &str = "E";

/// An interrupt of the run of that id, and no other.
pub(crate) const INTERRUPT: &str = "X";

/// What the kernel said.
#[derive(Debug, PartialEq)]
pub(crate) enum StdinMessage {
    /// A piece of its control stream.
    Control(Vec<u8>),
    /// It can take more input.
    More,
    /// It takes no more input.
    Enough,
}

/// Nothing else of a message is kept, whatever code has put there.
#[derive(Deserialize)]
struct RawStdinMessage {
    said: String,
}

/// Reads a message. `None` when it is not one of ours.
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

/// Puts the pieces together. Only what belongs to tools is let through: the rest of a run is the kernel's own to tell. What
/// the run before has still asked for as it ended comes late, and nobody waits for it any more.
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
            _ => return Err("a message that no kernel sends".to_owned()),
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
    fn only_messages_with_the_word_are_ours() {
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
    fn calls_come_in_pieces_and_nothing_else_comes() {
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
