//! Takes the values of secret variables out of output.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    Backend, BackendWrapper, CallContext, CodeError, Command, CommandEvent, CreateSpec, Event,
    EventKind, EventStream, Instance, InstanceWrapper, Layer, OutputStream, Result, RunCode,
    SandboxId, StartCommand, wrap_backend, wrap_instance,
};

/// Replaces a value in output.
const MASK: &[u8] = b"***";

/// Minimum length of a value that is masked: shorter ones are everywhere.
const MIN_VALUE: usize = 4;

/// Parts of the names of variables whose values are masked, beside those of
/// [`SandboxBuilder::secret`](sandbox_core::SandboxBuilder::secret).
const NAMES: [&str; 6] = ["PASSWORD", "PASSWD", "TOKEN", "KEY", "SECRET", "CREDENTIAL"];

/// Replaces the values of secret variables in output, displayed text and tracebacks by `***`.
///
/// Secret are the variables that the sandbox was made with by [`secret`](sandbox_core::SandboxBuilder::secret), and those
/// of the sandbox, of a run or of a command whose names have `PASSWORD`, `TOKEN`, `KEY`, `SECRET` or `CREDENTIAL` in them.
/// Values shorter than 4 bytes stay, and so does a value that the code has changed, such as by base64. Output that may be
/// the beginning of a value is held back until the next byte decides. Files are not masked.
#[derive(Clone, Copy, Debug, Default)]
pub struct MaskLayer;

impl Layer for MaskLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        wrap_backend(Arc::new(Masking { inner, secrets: Hidden::default() }))
    }
}

/// Values, the longest first, so that none hides in another.
type Values = Arc<[Bytes]>;

#[derive(Debug)]
struct Masking<T: ?Sized> {
    inner: Arc<T>,
    /// The values of the sandbox.
    secrets: Hidden,
}

/// Values that `Debug` does not show.
#[derive(Clone, Default)]
struct Hidden(Values);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl<T: ?Sized> Masking<T> {
    fn wrap(&self, inner: Arc<dyn Instance>, secrets: Hidden) -> Arc<dyn Instance> {
        wrap_instance(Arc::new(Masking { inner, secrets }))
    }

    /// Returns the values of the sandbox and those of one run.
    fn with(&self, env: &BTreeMap<String, String>) -> Values {
        let own = secret_values(env);
        if own.is_empty() {
            return Arc::clone(&self.secrets.0);
        }
        sorted(self.secrets.0.iter().cloned().chain(own).collect())
    }
}

fn secret_values(env: &BTreeMap<String, String>) -> Vec<Bytes> {
    let is_secret = |name: &str| {
        let name = name.to_ascii_uppercase();
        NAMES.iter().any(|part| name.contains(part))
    };
    let secret = env.iter().filter(|(name, value)| is_secret(name) && value.len() >= MIN_VALUE);
    secret.map(|(_, value)| Bytes::from(value.clone())).collect()
}

fn sorted(mut values: Vec<Bytes>) -> Values {
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values.dedup();
    values.into()
}

#[async_trait]
impl BackendWrapper for Masking<dyn Backend> {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let mut values = secret_values(&spec.env);
        let secrets = spec.secrets.values().map(|secret| secret.expose());
        let secrets = secrets.filter(|value| value.len() >= MIN_VALUE);
        values.extend(secrets.map(|value| Bytes::from(value.to_owned())));
        let made = self.inner.create(call, spec).await?;
        Ok(self.wrap(made, Hidden(sorted(values))))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        // The values that it was made with are not known here; those of runs are.
        self.inner.attach(call, id).await.map(|found| self.wrap(found, Hidden::default()))
    }
}

#[async_trait]
impl InstanceWrapper for Masking<dyn Instance> {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.inner
    }

    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        let copy = self.inner.life().fork(call).await?;
        Ok(self.wrap(copy, self.secrets.clone()))
    }

    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        let values = self.with(&request.env);
        let events = self.inner.code()?.run_code(call, request).await?;
        if values.is_empty() {
            return Ok(events);
        }
        let (mut mask, mut seq) = (StreamMask::new(values), 0);
        let masked = events.flat_map(move |event| {
            let all = mask.run_event(event, &mut seq);
            stream::iter(all)
        });
        Ok(Box::pin(masked))
    }

    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let values = self.with(&request.env);
        let command = self.inner.commands()?.start_command(call, request).await?;
        Ok(masked_command(command, values))
    }

    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command> {
        let command = self.inner.commands()?.connect_command(call, id).await?;
        Ok(masked_command(command, Arc::clone(&self.secrets.0)))
    }
}

fn masked_command(command: Command, values: Values) -> Command {
    if values.is_empty() {
        return command;
    }
    let mut mask = StreamMask::new(values);
    let events = command.events.flat_map(move |event| stream::iter(mask.command_event(event)));
    Command { events: Box::pin(events), ..command }
}

/// Masks both streams of one run.
struct StreamMask {
    values: Values,
    /// Bytes of standard output and standard error that may begin a value.
    held: [Vec<u8>; 2],
}

impl StreamMask {
    fn new(values: Values) -> Self {
        Self { values, held: Default::default() }
    }

    fn run_event(&mut self, event: Event, seq: &mut u64) -> Vec<Event> {
        let Event { run_id, timestamp, kind, .. } = event;
        let mut all: Vec<EventKind> = Vec::new();
        match kind {
            EventKind::Output { stream, data } => {
                let data = self.push(stream, &data);
                all.extend((!data.is_empty()).then_some(EventKind::Output { stream, data }));
            }
            EventKind::Display { display, mut item, display_id } => {
                for value in item.data.values_mut() {
                    if let serde_json::Value::String(text) = value {
                        *text = self.whole(text);
                    }
                }
                all.push(EventKind::Display { display, item, display_id });
            }
            EventKind::Error(error) => all.push(EventKind::Error(CodeError {
                name: error.name,
                value: self.whole(&error.value),
                traceback: self.whole(&error.traceback),
            })),
            EventKind::Finished(outcome) => {
                for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                    let data = self.flush(stream);
                    all.extend((!data.is_empty()).then_some(EventKind::Output { stream, data }));
                }
                all.push(EventKind::Finished(outcome));
            }
            other => all.push(other),
        }
        let number = |kind| {
            let event = Event { run_id: run_id.clone(), seq: *seq, timestamp, kind };
            *seq += 1;
            event
        };
        all.into_iter().map(number).collect()
    }

    fn command_event(&mut self, event: CommandEvent) -> Vec<CommandEvent> {
        match event {
            CommandEvent::Output { stream, data } => {
                let data = self.push(stream, &data);
                (!data.is_empty())
                    .then_some(CommandEvent::Output { stream, data })
                    .into_iter()
                    .collect()
            }
            CommandEvent::Skipped { stream, bytes } => {
                let data = self.flush(stream);
                let rest = (!data.is_empty()).then_some(CommandEvent::Output { stream, data });
                rest.into_iter().chain([CommandEvent::Skipped { stream, bytes }]).collect()
            }
            CommandEvent::Finished(outcome) => {
                let mut all = Vec::new();
                for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                    let data = self.flush(stream);
                    all.extend((!data.is_empty()).then_some(CommandEvent::Output { stream, data }));
                }
                all.push(CommandEvent::Finished(outcome));
                all
            }
            other => vec![other],
        }
    }

    /// Adds bytes of a stream. Returns what can be shown by now.
    fn push(&mut self, stream: OutputStream, data: &[u8]) -> Bytes {
        let held = &mut self.held[usize::from(stream == OutputStream::Stderr)];
        held.extend_from_slice(data);
        let (shown, rest) = masked(held, &self.values, false);
        held.drain(..rest);
        shown.into()
    }

    /// Returns the bytes of a stream that were held back.
    fn flush(&mut self, stream: OutputStream) -> Bytes {
        let held = std::mem::take(&mut self.held[usize::from(stream == OutputStream::Stderr)]);
        masked(&held, &self.values, true).0.into()
    }

    fn whole(&self, text: &str) -> String {
        String::from_utf8_lossy(&masked(text.as_bytes(), &self.values, true).0).into_owned()
    }
}

/// Masks the values in these bytes. Returns the result, and how many bytes it stands for: fewer than all when the last may
/// begin a value, and more may follow.
fn masked(bytes: &[u8], values: &[Bytes], is_end: bool) -> (Vec<u8>, usize) {
    let (mut shown, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(first) = bytes.get(at) {
        let rest = &bytes[at..];
        let could_be = values.iter().filter(|value| value.first() == Some(first));
        let mut is_begun = false;
        let mut found = None;
        for value in could_be {
            if rest.starts_with(value) {
                found.get_or_insert(value.len());
            } else if value.starts_with(rest) {
                is_begun = true;
            }
        }
        if is_begun && !is_end {
            break;
        }
        match found {
            Some(length) => {
                shown.extend_from_slice(MASK);
                at += length;
            }
            None => {
                shown.push(*first);
                at += 1;
            }
        }
    }
    (shown, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(all: &[&str]) -> Values {
        sorted(all.iter().map(|value| Bytes::from((*value).to_owned())).collect())
    }

    #[test]
    fn values_are_masked_wherever_chunks_are_cut() {
        let text = b"a hunter2 b hunter hunter22 c";
        for cut in 0..text.len() {
            let mut mask = StreamMask::new(values(&["hunter2", "hunter22"]));
            let mut shown = Vec::new();
            for chunk in [&text[..cut], &text[cut..]] {
                shown.extend_from_slice(&mask.push(OutputStream::Stdout, chunk));
            }
            shown.extend_from_slice(&mask.flush(OutputStream::Stdout));
            assert_eq!(String::from_utf8_lossy(&shown), "a *** b hunter *** c", "cut at {cut}");
        }
    }

    #[test]
    fn what_begins_a_value_is_held_back_and_shown_at_the_end() {
        let mut mask = StreamMask::new(values(&["secret"]));
        assert_eq!(mask.push(OutputStream::Stdout, b"the sec"), "the ");
        assert_eq!(mask.push(OutputStream::Stderr, b"ret"), "ret", "another stream");
        assert_eq!(mask.flush(OutputStream::Stdout), "sec");
    }

    #[test]
    fn secret_are_the_variables_whose_names_say_so() {
        let env =
            [("API_KEY", "12345"), ("my_token", "abcdef"), ("HOME", "/home"), ("PIN_KEY", "1")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(sorted(secret_values(&env)).as_ref(), ["abcdef", "12345"]);
    }
}
