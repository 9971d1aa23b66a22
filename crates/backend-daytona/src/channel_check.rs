//! The check of a terminal before it is a channel: it has to pass on every byte, in both directions.

use bytes::{Buf as _, Bytes, BytesMut};
use sandbox_cloud::http::websocket::{SocketMessage, SocketReceiver, SocketSender};
use sandbox_core::{Error, Result};

use crate::channel::lost;

/// Bytes before the check that are passed over: what a shell prints.
const MAX_NOISE: usize = 1 << 20;

/// Takes part in the check of the terminal. Returns what came behind it.
pub(crate) async fn check(
    sender: &mut SocketSender,
    receiver: &mut SocketReceiver,
    word: &str,
) -> Result<BytesMut> {
    let every: Vec<u8> = (0..=255).collect();
    let mut heard = BytesMut::new();
    let mut is_sent = false;
    loop {
        if let Some(line) = next_line(&heard, word) {
            let rest = line.end + 1;
            match &heard[line] {
                b"ready" if heard.len() < rest + every.len() => {}
                b"ready" if !is_sent && heard[rest..rest + every.len()] == every[..] => {
                    heard.advance(rest + every.len());
                    sender.binary(Bytes::from(every.clone())).await?;
                    is_sent = true;
                    continue;
                }
                b"clean" => {
                    heard.advance(rest);
                    return Ok(heard);
                }
                other => return Err(unsuitable(&String::from_utf8_lossy(other))),
            }
        }
        if heard.len() > MAX_NOISE {
            return Err(unsuitable("it prints something else"));
        }
        match receiver.next().await {
            Some(SocketMessage::Binary(data)) => heard.extend_from_slice(&data),
            Some(SocketMessage::Text(_)) => {}
            Some(SocketMessage::Closed { .. }) | None => return Err(lost()),
        }
    }
}

/// Finds the rest of the first complete line that begins with a word.
fn next_line(heard: &[u8], word: &str) -> Option<std::ops::Range<usize>> {
    let mark = format!("{word} ");
    let begin = memchr::memmem::find(heard, mark.as_bytes())? + mark.len();
    let end = begin + memchr::memchr(b'\n', &heard[begin..])?;
    Some(begin..end)
}

fn unsuitable(why: &str) -> Error {
    Error::unsupported("connect", format!("no channel to the sandbox: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_check_is_found_behind_what_a_shell_prints() {
        assert_eq!(next_line(b"$ exec\r\nw ready\nrest", "w"), Some(10..15));
        assert_eq!(next_line(b"$ exec\r\nw rea", "w"), None);
    }
}
