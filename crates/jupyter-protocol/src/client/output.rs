//! All that came of code, at once.

use super::ExecutionStream;
use crate::content::{ErrorContent, StreamName};
use crate::execution::{Event, Outcome};
use crate::outputs::{Output, Outputs};

/// How much [`ExecutionStream::collect`] keeps, in bytes.
const DEFAULT_LIMIT: usize = 16 * 1024 * 1024;

/// All that came of code, as [`ExecutionStream::collect`] gives it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExecutionOutput {
    /// What was written to standard output, from its beginning.
    pub stdout: String,
    /// What was written to standard error, from its beginning.
    pub stderr: String,
    /// What a notebook shows of it: text, displays as they were at the end, the value, the error.
    pub outputs: Vec<Output>,
    /// Bytes that are missing above, because there were more than are kept.
    pub cut: u64,
    /// How it ended, and what is missing for other reasons.
    pub outcome: Outcome,
}

impl ExecutionOutput {
    /// Whether the code ran and succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.outcome.is_ok()
    }

    /// Whether everything that the code wrote and showed is here, as far as can be known.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.cut == 0 && self.outcome.losses.is_none()
    }

    /// The exception that the code did not catch.
    #[must_use]
    pub fn error(&self) -> Option<&ErrorContent> {
        self.outcome.error.as_ref()
    }

    /// The value of the last expression, as plain text.
    #[must_use]
    pub fn value(&self) -> Option<String> {
        self.outputs.iter().rev().find_map(|output| match output {
            Output::Result(result) => result.data.plain(),
            _ => None,
        })
    }
}

impl ExecutionStream {
    /// Waits for the end, as long as the code runs, and keeps 16 MiB at limit of each: standard output, standard error, and
    /// what a notebook shows. What is beyond that is counted.
    ///
    /// Nobody answers code that asks for input: whoever [allows it](crate::ExecuteRequest::with_stdin) takes events instead.
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

    /// As [`ExecutionStream::collect`], with another number of bytes to keep of each.
    ///
    /// # Cancellation
    /// As [`ExecutionStream::outcome`].
    pub async fn collect_within(mut self, bytes: usize) -> ExecutionOutput {
        let (mut stdout, mut stderr) = (BoundedText::new(bytes), BoundedText::new(bytes));
        let mut outputs = Outputs::new(bytes);
        loop {
            if let Some(outcome) = self.known_outcome() {
                // Events may still wait to be seen.
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

/// The beginning of what was written.
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
        // Once something is missing, what follows would be at a wrong place.
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
