//! A terminal in raw mode as a way for bytes in both directions, to an interpreter of the image.
//!
//! A terminal need not pass on every byte, so each use of one begins with a check of all of them, in both directions.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use sandbox_core::{Error, ErrorKind};
use tokio::time::timeout;

use super::{ProgramOutput, SHELL};

/// Makes a terminal raw, and starts the check and the interpreter.
const START: &str = include_str!("raw_terminal.sh");

/// Checks that the terminal passes on every byte in both directions.
const CHECK: &str = include_str!("raw_terminal.py");

/// Time for the check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes before the check that are passed over: what a shell prints.
const MAX_NOISE: usize = 1 << 20;

/// The reason for which a terminal is no way to an interpreter.
#[derive(Debug)]
#[non_exhaustive]
pub enum RawTerminalError {
    /// The terminal changes bytes, or prints something else than the check.
    Unsuitable(&'static str),
    /// The image has no `stty`.
    NoStty,
    /// The image has no Python 3.9 or later.
    NoPython,
    /// The terminal was closed.
    Closed(Option<io::Error>),
    /// The terminal did not answer in time.
    Timeout,
}

impl RawTerminalError {
    /// Returns the error of an operation that needs the terminal: `Unsupported` where another attempt would fail too.
    pub fn into_error(self, operation: &'static str) -> Error {
        let no_way =
            |why: &str| format!("the terminal of this sandbox is no way to an interpreter: {why}");
        match self {
            Self::Unsuitable(why) => Error::unsupported(operation, no_way(why)),
            Self::NoStty => {
                let message = "the image has no `stty`, which the way to an interpreter needs";
                Error::unsupported(operation, message)
            }
            Self::NoPython => Error::unsupported(operation, "the image has no Python 3.9 or later"),
            Self::Closed(source) => {
                let message = "the terminal that leads to an interpreter was closed";
                let error = Error::new(ErrorKind::Unavailable, operation, message);
                match source {
                    Some(source) => error.with_source(source),
                    None => error,
                }
            }
            Self::Timeout => {
                let message = no_way("it did not answer in time");
                Error::new(ErrorKind::Timeout, operation, message)
            }
        }
    }
}

/// Returns the program for a terminal that becomes a Python interpreter with these arguments, once a client has taken part in
/// [`check_raw_terminal`]. `word` is a random word, and `errors` the file in the sandbox that has the interpreter's errors.
pub fn raw_terminal_program(word: &str, errors: &str, interpreter: Vec<String>) -> Vec<String> {
    let mut argv: Vec<String> =
        [SHELL, "-c", START, "sh", word, errors, CHECK].map(str::to_owned).into();
    argv.extend(interpreter);
    argv
}

/// Waits for the check of the terminal that [`raw_terminal_program`] was started on, and takes part in it: `type_in` writes to
/// the terminal. Returns the output behind the check. The check takes at most a minute.
///
/// # Errors
/// The reason for which the terminal cannot be used.
pub async fn check_raw_terminal(
    output: ProgramOutput,
    word: &str,
    type_in: impl AsyncFnOnce(Bytes) -> io::Result<()>,
) -> Result<ProgramOutput, RawTerminalError> {
    let checked = timeout(CHECK_TIMEOUT, check(output, word, type_in)).await;
    checked.unwrap_or(Err(RawTerminalError::Timeout))
}

async fn check(
    mut output: ProgramOutput,
    word: &str,
    type_in: impl AsyncFnOnce(Bytes) -> io::Result<()>,
) -> Result<ProgramOutput, RawTerminalError> {
    use RawTerminalError::{Closed, NoPython, NoStty, Unsuitable};

    let every: Vec<u8> = (0..=255).collect();
    let mut heard = BytesMut::new();
    let mut type_in = Some(type_in);
    loop {
        if let Some(line) = next_line(&heard, word) {
            let rest = line.end + 1;
            match heard[line].trim_ascii() {
                b"ready" if heard.len() < rest + every.len() => {}
                b"ready" => {
                    let is_clean = heard[rest..rest + every.len()] == every[..];
                    let Some(type_in) = type_in.take().filter(|_| is_clean) else {
                        return Err(Unsuitable("it changes bytes of the output"));
                    };
                    heard.advance(rest + every.len());
                    let sent = type_in(Bytes::copy_from_slice(&every)).await;
                    sent.map_err(|error| Closed(Some(error)))?;
                    continue;
                }
                b"clean" => {
                    heard.advance(rest);
                    let first = (!heard.is_empty()).then(|| Ok((0, heard.freeze())));
                    return Ok(Box::pin(stream::iter(first).chain(output)));
                }
                b"unclean" => return Err(Unsuitable("it changes bytes of the input")),
                b"lacking stty" => return Err(NoStty),
                _ => return Err(NoPython),
            }
        }
        if heard.len() > MAX_NOISE {
            return Err(Unsuitable("it prints something else"));
        }
        match output.next().await {
            Some(Ok((_, data))) => heard.extend_from_slice(&data),
            Some(Err(error)) => return Err(Closed(Some(error))),
            None => return Err(Closed(None)),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers the check as a terminal that does `change` to what passes.
    async fn checked(word: &str, lines: Vec<Vec<u8>>) -> Result<ProgramOutput, RawTerminalError> {
        let lines = lines.into_iter().map(|line| Ok((0, Bytes::from(line))));
        check_raw_terminal(Box::pin(stream::iter(lines)), word, async |_| Ok(())).await
    }

    #[tokio::test]
    async fn terminals_that_change_bytes_are_refused() {
        let every: Vec<u8> = (0..=255).collect();
        let ready = |bytes: &[u8]| [b"$ noise\r\nw ready\n", bytes].concat();
        let mut rest = checked("w", vec![ready(&every), b"w clean\nrest".to_vec()]).await.unwrap();
        assert_eq!(rest.next().await.unwrap().unwrap(), (0, Bytes::from_static(b"rest")));
        let mut changed = every.clone();
        changed[10] = 13;
        for (lines, why) in [
            (vec![ready(&changed)], "output"),
            (vec![ready(&every), b"w unclean\n".to_vec()], "input"),
            (vec![b"w lacking stty\n".to_vec()], "stty"),
            (vec![b"w lacking python\n".to_vec()], "Python 3.9"),
        ] {
            let error = checked("w", lines).await.err().unwrap().into_error("connect");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains(why), "{error:?}");
        }
        let error = checked("w", vec![b"$ ".to_vec()]).await.err().unwrap().into_error("connect");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_line_of_the_check_is_found_behind_what_a_shell_prints() {
        assert_eq!(next_line(b"$ exec\r\nw ready\nrest", "w"), Some(10..15));
        assert_eq!(next_line(b"$ exec\r\nw rea", "w"), None);
    }
}
