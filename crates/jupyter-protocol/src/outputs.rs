//! The outputs of one execution as a notebook would show them.

use serde_json::{Value, json};

use crate::content::{DisplayData, ErrorContent, ExecuteResult, StreamName};
use crate::execution::Event;
use crate::json::JsonMap;
use crate::media::MimeBundle;

/// One output.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// Consecutive text of one stream.
    Stream {
        /// The stream.
        name: StreamName,
        /// The text.
        text: String,
    },
    /// A display.
    Display(Box<DisplayData>),
    /// The value of the last expression.
    Result(Box<ExecuteResult>),
    /// An exception.
    Error(Box<ErrorContent>),
}

/// Collects the outputs of one execution: joins streams, updates displays, clears on request.
///
/// Text and data beyond the budget are dropped and counted.
///
/// ```
/// use jupyter_protocol::content::Stream;
/// use jupyter_protocol::execution::Event;
/// use jupyter_protocol::outputs::{Output, Outputs};
///
/// let mut outputs = Outputs::new(1024 * 1024);
/// for text in ["a", "b"] {
///     outputs.apply(&Event::Stream(Box::new(Stream::stdout(text))));
/// }
/// assert!(matches!(&outputs.items()[..], [Output::Stream { text, .. }] if text == "ab"));
/// ```
#[derive(Clone, Debug)]
pub struct Outputs {
    items: Vec<Output>,
    budget: usize,
    used: usize,
    dropped: u64,
    clear_on_next: bool,
}

/// The memory of an output besides its text, in bytes.
const OVERHEAD: usize = 256;

impl Outputs {
    /// Creates an empty collection with a budget in bytes.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self { items: Vec::new(), budget, used: 0, dropped: 0, clear_on_next: false }
    }

    /// Returns the outputs, in order.
    #[must_use]
    pub fn items(&self) -> &[Output] {
        &self.items
    }

    /// Returns the outputs, in order.
    #[must_use]
    pub fn into_items(self) -> Vec<Output> {
        self.items
    }

    /// Returns the number of bytes that were dropped because they exceeded the budget.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Applies an event. Events without output change nothing.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Stream(stream) => self.write(&stream.name, &stream.text),
            Event::Display { display, .. } => self.push(Output::Display(display.clone())),
            Event::Result { result, .. } => self.push(Output::Result(result.clone())),
            Event::Error(error) => self.push(Output::Error(error.clone())),
            Event::UpdateDisplay { update, .. } => {
                if let Some(id) = &update.transient.display_id {
                    self.update(id, &update.data, &update.metadata);
                }
            }
            Event::ClearOutput { wait: true } => self.clear_on_next = true,
            Event::ClearOutput { wait: false } => self.clear(),
            _ => {}
        }
    }

    fn write(&mut self, name: &StreamName, text: &str) {
        self.clear_if_due();
        let joins =
            matches!(self.items.last(), Some(Output::Stream { name: last, .. }) if last == name);
        let overhead = if joins { 0 } else { OVERHEAD };
        let room = self.budget.saturating_sub(self.used + overhead);
        let kept = text.floor_char_boundary(room.min(text.len()));
        self.dropped += (text.len() - kept) as u64;
        if kept == 0 {
            return;
        }
        self.used += kept + overhead;
        match self.items.last_mut() {
            Some(Output::Stream { text: so_far, .. }) if joins => so_far.push_str(&text[..kept]),
            _ => self
                .items
                .push(Output::Stream { name: name.clone(), text: text[..kept].to_owned() }),
        }
    }

    fn push(&mut self, output: Output) {
        self.clear_if_due();
        let cost = output.cost();
        if self.used.saturating_add(cost) > self.budget {
            self.dropped += cost as u64;
            return;
        }
        self.used += cost;
        self.items.push(output);
    }

    fn update(&mut self, id: &str, data: &MimeBundle, metadata: &JsonMap) {
        let new = json_size(&data.0) + json_size(metadata);
        for item in &mut self.items {
            let (transient, shown, about) = match item {
                Output::Display(display) => {
                    (&display.transient, &mut display.data, &mut display.metadata)
                }
                Output::Result(result) => {
                    (&result.transient, &mut result.data, &mut result.metadata)
                }
                _ => continue,
            };
            if transient.display_id.as_deref() != Some(id) {
                continue;
            }
            let rest = self.used.saturating_sub(json_size(&shown.0) + json_size(about));
            if rest.saturating_add(new) > self.budget {
                self.dropped += new as u64;
                continue;
            }
            self.used = rest + new;
            shown.clone_from(data);
            about.clone_from(metadata);
        }
    }

    fn clear_if_due(&mut self) {
        if std::mem::take(&mut self.clear_on_next) {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.items.clear();
        self.used = 0;
        self.clear_on_next = false;
    }
}

impl Output {
    /// Returns the output in the form of notebook files, version 4. Data that is not part of that form, such as a
    /// display id, is omitted.
    ///
    /// ```
    /// use jupyter_protocol::outputs::Output;
    ///
    /// let output = Output::Stream { name: "stdout".into(), text: "a\n".to_owned() };
    /// let expected = serde_json::json!({"output_type": "stream", "name": "stdout", "text": "a\n"});
    /// assert_eq!(output.to_nbformat(), expected);
    /// ```
    #[must_use]
    pub fn to_nbformat(&self) -> Value {
        match self {
            Self::Stream { name, text } => {
                json!({"output_type": "stream", "name": name, "text": text})
            }
            Self::Display(display) => json!({
                "output_type": "display_data",
                "data": display.data.to_nbformat(),
                "metadata": display.metadata,
            }),
            Self::Result(result) => json!({
                "output_type": "execute_result",
                "execution_count": result.execution_count,
                "data": result.data.to_nbformat(),
                "metadata": result.metadata,
            }),
            Self::Error(error) => json!({
                "output_type": "error",
                "ename": error.ename,
                "evalue": error.evalue,
                "traceback": error.traceback,
            }),
        }
    }

    fn cost(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Stream { text, .. } => text.len(),
                Self::Display(display) => json_size(&display.data.0) + json_size(&display.metadata),
                Self::Result(result) => json_size(&result.data.0) + json_size(&result.metadata),
                Self::Error(error) => {
                    let traceback = error.traceback.iter().map(String::len).sum::<usize>();
                    error.ename.len() + error.evalue.len() + traceback
                }
            }
    }
}

/// Estimates the memory of a JSON object, in bytes.
fn json_size(map: &JsonMap) -> usize {
    map.iter().map(|(key, value)| 64 + key.len() + value_size(value)).sum()
}

fn value_size(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(|item| 32 + value_size(item)).sum(),
        serde_json::Value::Object(map) => json_size(map),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Stream, Transient, UpdateDisplayData};

    fn text(name: &str, text: &str) -> Event {
        Event::Stream(Box::new(Stream {
            name: name.into(),
            text: text.into(),
            ..Stream::default()
        }))
    }

    fn transient(id: &str) -> Transient {
        Transient { display_id: Some(id.into()), ..Transient::default() }
    }

    fn display(id: &str, text: &str) -> Event {
        let display = DisplayData {
            data: MimeBundle::text(text),
            transient: transient(id),
            ..DisplayData::default()
        };
        Event::Display { display: Box::new(display), buffers: Vec::new() }
    }

    fn update(id: &str, text: &str) -> Event {
        let update = UpdateDisplayData {
            data: MimeBundle::text(text),
            transient: transient(id),
            ..UpdateDisplayData::default()
        };
        Event::UpdateDisplay { update: Box::new(update), buffers: Vec::new() }
    }

    fn shown(outputs: &Outputs) -> Vec<String> {
        let text = |output: &Output| match output {
            Output::Stream { text, .. } => text.clone(),
            Output::Display(display) => display.data.plain().unwrap(),
            other => panic!("{other:?}"),
        };
        outputs.items().iter().map(text).collect()
    }

    fn after(events: &[Event]) -> Outputs {
        let mut outputs = Outputs::new(100_000);
        events.iter().for_each(|event| outputs.apply(event));
        outputs
    }

    #[test]
    fn notebooks_have_what_was_shown_and_nothing_of_the_messages() {
        let error = ErrorContent {
            ename: "E".into(),
            evalue: "v".into(),
            traceback: vec!["line".into()],
            ..ErrorContent::default()
        };
        let result = ExecuteResult {
            execution_count: Some(3),
            data: MimeBundle::text("4"),
            transient: transient("id"),
            ..ExecuteResult::default()
        };
        let outputs = after(&[
            display("id", "shown"),
            Event::Result { result: Box::new(result), buffers: Vec::new() },
            Event::Error(Box::new(error)),
        ]);
        let written: Vec<_> = outputs.items().iter().map(Output::to_nbformat).collect();
        assert_eq!(
            written,
            [
                json!({"output_type": "display_data", "data": {"text/plain": "shown"}, "metadata": {}}),
                json!({"output_type": "execute_result", "execution_count": 3,
                       "data": {"text/plain": "4"}, "metadata": {}}),
                json!({"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["line"]}),
            ]
        );
    }

    #[test]
    fn notebooks_are_valid_for_any_display() {
        let data = MimeBundle::default()
            .with("text/html", 5)
            .with("image/png", Value::Null)
            .with("text/latex", json!({"a": [1]}))
            .with("text/plain", json!(["a\n", "b"]))
            .with("application/json", json!([5, null]))
            .with("application/vnd.x+json", json!({"a": 1}));
        let valid = json!({
            "text/html": "5", "image/png": "null", "text/latex": "{\"a\":[1]}", "text/plain": "a\nb",
            "application/json": [5, null], "application/vnd.x+json": {"a": 1},
        });
        let display = DisplayData { data: data.clone(), ..DisplayData::default() };
        assert_eq!(Output::Display(Box::new(display)).to_nbformat()["data"], valid);
        let result = ExecuteResult { data, ..ExecuteResult::default() };
        assert_eq!(Output::Result(Box::new(result)).to_nbformat()["data"], valid);
    }

    #[test]
    fn neighbours_of_one_stream_are_joined() {
        let outputs = after(&[
            text("stdout", "a"),
            text("stdout", "b"),
            text("stderr", "c"),
            text("stdout", "d"),
        ]);
        assert_eq!(shown(&outputs), ["ab", "c", "d"]);
    }

    #[test]
    fn displays_are_updated_wherever_they_are_shown() {
        let outputs =
            after(&[display("1", "a"), display("2", "b"), display("1", "c"), update("1", "new")]);
        assert_eq!(shown(&outputs), ["new", "b", "new"]);
    }

    #[test]
    fn clearing_can_wait_for_the_next_output() {
        let clear = |wait| Event::ClearOutput { wait };
        assert_eq!(shown(&after(&[text("stdout", "a"), clear(false)])), Vec::<String>::new());
        let waiting = after(&[text("stdout", "a"), clear(true), Event::Idle]);
        assert_eq!(shown(&waiting), ["a"]);
        let cleared =
            after(&[text("stdout", "a"), clear(true), text("stdout", "b"), text("stdout", "c")]);
        assert_eq!(shown(&cleared), ["bc"]);
    }

    #[test]
    fn output_over_the_budget_is_counted() {
        let mut outputs = Outputs::new(OVERHEAD + 5);
        outputs.apply(&text("stdout", "abcdé"));
        assert_eq!((shown(&outputs), outputs.dropped()), (vec!["abcd".to_owned()], 2));
        outputs.apply(&display("1", "x"));
        assert_eq!(outputs.items().len(), 1);
        assert!(outputs.dropped() > 256);
        let mut none = Outputs::new(0);
        for _ in 0..1000 {
            none.apply(&text("stdout", ""));
            none.apply(&text("stdout", "x"));
        }
        assert_eq!((none.items().len(), none.dropped()), (0, 1000));
    }

    #[test]
    fn updates_stay_within_the_budget() {
        let mut outputs = Outputs::new(1000);
        outputs.apply(&display("1", "a"));
        outputs.apply(&update("1", &"x".repeat(2000)));
        assert_eq!(shown(&outputs), ["a"]);
        outputs.apply(&update("1", "b"));
        assert_eq!(shown(&outputs), ["b"]);
    }
}
