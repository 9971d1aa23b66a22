//! Published messages of a kernel, and their conversion.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use jupyter_protocol::Message;
use jupyter_protocol::content::StreamName;
use jupyter_protocol::execution::{Event, Loss, Outcome};
use serde::Deserialize;

use crate::buffer::{self, Buffer};
use crate::control::ReplyBarrier;
use crate::stdin_channel::CHUNK_SIZE;

/// The type of the messages that carry marks.
const MARKS: &str = "sandbox_marks";

/// The exception that exits Python.
const EXIT: &str = "SystemExit";

/// Returns true if the event is output.
pub(crate) fn is_output(event: &Event) -> bool {
    matches!(
        event,
        Event::Stream(_)
            | Event::Result { .. }
            | Event::Display { .. }
            | Event::UpdateDisplay { .. }
            | Event::ClearOutput { .. }
    )
}

/// Returns true if the message should be output, but its content is malformed.
pub(crate) fn is_lost_output(message: &Message) -> bool {
    const OUTPUT: [&str; 4] = ["stream", "display_data", "update_display_data", "execute_result"];
    message.content.is_malformed() && OUTPUT.contains(&message.header.msg_type.as_str())
}

/// Only this field is parsed, whatever code has put into the message.
#[derive(Deserialize)]
struct Marks {
    marks: [i64; 2],
}

/// Returns the marks that the kernel program publishes before a display: the numbers of the marks in standard output
/// and standard error up to which the text comes before the display.
pub(crate) fn marks(message: &Message) -> Option<[i64; 2]> {
    if message.header.msg_type != MARKS {
        return None;
    }
    let Marks { marks } = serde_json::from_slice(&message.content.to_json()).ok()?;
    Some(marks)
}

/// Writes published text to the streams as they are read, after all earlier replies have been read. Nothing is lost if
/// the future is dropped.
pub(crate) async fn pass_on(
    barrier: &ReplyBarrier,
    streams: &[Arc<Buffer>; 2],
    unread: &mut VecDeque<(StreamName, Bytes)>,
) {
    barrier.wait().await;
    while let Some((name, data)) = unread.front_mut() {
        let stream = &streams[usize::from(*name == StreamName::Stderr)];
        stream.room().await;
        stream.push(&data.split_to(data.len().min(buffer::CHUNK_SIZE)));
        if data.is_empty() {
            unread.pop_front();
        }
    }
}

/// Waits for the next piece of input, if the kernel wants one.
pub(crate) async fn input(stdin: &Option<Arc<Buffer>>, wanted: bool) -> Option<Vec<u8>> {
    if !wanted {
        std::future::pending::<()>().await;
    }
    match stdin {
        Some(stdin) => stdin.next(CHUNK_SIZE).await,
        None => None,
    }
}

/// Returns the status of an exit that only the exception reports.
pub(crate) fn exit_of(outcome: &Outcome) -> Option<i64> {
    let error = outcome.error.as_ref().filter(|error| error.ename == EXIT)?;
    match error.evalue.as_str() {
        "" | "None" | "False" => Some(0),
        "True" => Some(1),
        status => Some(status.parse().unwrap_or(1)),
    }
}

pub(crate) fn lost(loss: Loss) -> String {
    match loss {
        Loss::Overflow { messages, bytes } => {
            format!(
                "[output is missing here: {messages} messages of {bytes} bytes arrived faster than they were read]"
            )
        }
        Loss::RateLimited => {
            "[output is missing here: the server dropped what came too fast for its iopub_data_rate_limit and \
             iopub_msg_rate_limit]"
                .into()
        }
        Loss::Disconnected => "[output may be missing here: the connection broke]".into(),
        _ => "[output may be missing here: the kernel did not report the end of the output]".into(),
    }
}
