//! The collected output of an execution.

use super::ExecutionStream;
use crate::content::{ErrorContent, StreamName};
use crate::execution::{Event, Outcome};
use crate::outputs::{Output, Outputs};

/// Default limit of [`ExecutionStream::collect`], in bytes.
const DEFAULT_LIMIT: usize = 16 * 1024 * 1024;

/// The complete output of an execution, as returned by [`ExecutionStream::collect`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExecutionOutput {
    /// Standard output, cut at its end.
    pub stdout: String,
    /// Standard error, cut at its end.
    pub stderr: String,
    /// The outputs that a notebook shows: text, displays in their final form, the value, the error.
    pub outputs: Vec<Output>,
    /// The number of bytes that were cut from the fields above.
    pub cut: u64,
    /// The outcome of the execution, with all other losses.
    pub outcome: Outcome,
}

impl ExecutionOutput {
    /// Returns true if the code ran and succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.outcome.is_ok()
    }

    /// Returns true if no output is known to be missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.cut == 0 && self.outcome.losses.is_none()
    }

    /// Returns the exception that the code did not catch.
    #[must_use]
    pub fn error(&self) -> Option<&ErrorContent> {
        self.outcome.error.as_ref()
    }

    /// Returns the value of the last expression as plain text.
    #[must_use]
    pub fn value(&self) -> Option<String> {
        self.outputs.iter().rev().find_map(|output| match output {
            Output::Result(result) => result.data.plain(),
            _ => None,
        })
    }
}

impl ExecutionStream {
    /// Waits for the end of the execution, as long as the code runs, and collects its output: at most 16 MiB each of
    /// standard output, of standard error and of what a notebook shows. Bytes beyond that are counted.
    ///
    /// Questions of the code stay unanswered: to run code that [may ask for input](crate::ExecuteRequest::with_stdin),
    /// take events instead.
    ///
    /// ```no_run
    /// # async fn run(client: jupyter_protocol::client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let ran = client.execute("print('hello'); 6 * 7").await?.collect().await;
    /// assert_eq!((ran.stdout.as_str(), ran.value().as_deref()), ("hello\n", Some("42")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancellation
    /// As [`ExecutionStream::outcome`].
    pub async fn collect(self) -> ExecutionOutput {
        self.collect_within(DEFAULT_LIMIT).await
    }

    /// As [`ExecutionStream::collect`], with a limit of `bytes` for each of the three.
    ///
    /// # Cancellation
    /// As [`ExecutionStream::outcome`].
    pub async fn collect_within(mut self, bytes: usize) -> ExecutionOutput {
        let (mut stdout, mut stderr) = (BoundedText::new(bytes), BoundedText::new(bytes));
        let mut outputs = Outputs::new(bytes);
        loop {
            if let Some(outcome) = self.known_outcome() {
                // Events may still be queued.
                let outcome = outcome.clone();
                while let Some(event) = self.next().await {
                    take(&event, &mut stdout, &mut stderr, &mut outputs);
                }
                return ExecutionOutput {
                    cut: stdout.cut + stderr.cut + outputs.dropped(),
                    stdout: stdout.kept,
                    stderr: stderr.kept,
                    outputs: outputs.into_items(),
                    outcome,
                };
            }
            if let Some(event) = self.next().await {
                take(&event, &mut stdout, &mut stderr, &mut outputs);
            }
        }
    }
}

fn take(event: &Event, stdout: &mut BoundedText, stderr: &mut BoundedText, outputs: &mut Outputs) {
    match event {
        Event::Stream(stream) if stream.name == StreamName::Stdout => stdout.add(&stream.text),
        Event::Stream(stream) if stream.name == StreamName::Stderr => stderr.add(&stream.text),
        _ => {}
    }
    outputs.apply(event);
}

/// The beginning of a text.
struct BoundedText {
    kept: String,
    limit: usize,
    cut: u64,
}

impl BoundedText {
    fn new(limit: usize) -> Self {
        Self { kept: String::new(), limit, cut: 0 }
    }

    fn add(&mut self, text: &str) {
        // After the first cut, later text would be at the wrong position.
        let room = if self.cut == 0 { self.limit - self.kept.len() } else { 0 };
        let (kept, cut) = text.split_at(text.floor_char_boundary(room.min(text.len())));
        self.kept.push_str(kept);
        self.cut += cut.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_is_kept_and_the_rest_is_counted() {
        let mut text = BoundedText::new(4);
        for part in ["ab", "céd", "e"] {
            text.add(part);
        }
        assert_eq!((text.kept.as_str(), text.cut), ("abc", 4));
    }
}
