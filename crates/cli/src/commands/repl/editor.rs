//! The line editor, on its own thread, because it blocks on keys. It sends queries about the code to the session.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::termios::{QueueSelector, tcflush};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event, EventContext,
    EventHandler, Helper, KeyCode, KeyEvent, Modifiers, Movement, RepeatCount,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::debug;

use super::introspect::Names;
use super::{dumb_terminal, history, meta_command};
use crate::error::CliError;

const PROMPT: &str = ">>> ";
/// Resets the terminal after the editor: turns off bracketed paste, and ends the line.
pub(super) const RESET_LINE: &[u8] = b"\x1b[?2004l\r\n";
/// One step of indentation.
const INDENTATION: &str = "    ";
/// Number of spaces in one step of indentation.
const INDENT_SIZE: u8 = 4;
/// Maximum number of history entries.
const MAX_HISTORY: usize = 10_000;
/// Maximum time to wait for an answer: longer than the timeouts of the answers themselves.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// An event or a query of the editor.
#[derive(Debug)]
pub(super) enum EditorEvent {
    /// Code, or a command of the session.
    Text(String),
    /// Ctrl-C.
    Cancelled,
    /// Input that is not UTF-8 text. The text before it can still be edited.
    InvalidText,
    /// Ctrl-D.
    End,
    /// The terminal cannot be read.
    Broken(ReadlineError),
    /// Query: is this code complete?
    IsComplete(String, Sender<bool>),
    /// Query: which names complete this text?
    Names(String, Sender<Names>),
}

/// The handle of the editor's thread.
#[derive(Debug)]
pub(super) struct EditorThread {
    reads: Sender<()>,
    events: UnboundedReceiver<EditorEvent>,
}

impl EditorThread {
    /// Starts the thread. It reads nothing before [`EditorThread::read`].
    pub(super) fn start() -> Result<Self, CliError> {
        let (reads, requests) = channel();
        let (sender, events) = unbounded_channel();
        let run = move || match LineEditor::new(sender.clone()) {
            Ok(mut lines) => lines.serve(&requests),
            Err(error) => drop(sender.send(EditorEvent::Broken(error))),
        };
        let spawned = thread::Builder::new().name("editor".into()).spawn(run);
        spawned.map_err(|error| CliError::host("starting the line editor", error))?;
        Ok(Self { reads, events })
    }

    /// Reads one text. Queries may arrive before it.
    pub(super) fn read(&self) {
        // A thread that has ended has sent the reason.
        let _ = self.reads.send(());
    }

    /// Receives the next event.
    pub(super) async fn next(&mut self) -> EditorEvent {
        let ended = || EditorEvent::Broken(io::Error::other("the line editor has ended").into());
        self.events.recv().await.unwrap_or_else(ended)
    }
}

/// The editor, on its thread.
struct LineEditor {
    editor: Editor<EditorHelper, DefaultHistory>,
    sender: UnboundedSender<EditorEvent>,
    history: Option<PathBuf>,
    helper: EditorHelper,
    is_dumb: bool,
}

impl LineEditor {
    fn new(sender: UnboundedSender<EditorEvent>) -> rustyline::Result<Self> {
        let config = Config::builder()
            .max_history_size(MAX_HISTORY)?
            .history_ignore_dups(true)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .indent_size(INDENT_SIZE)
            .build();
        let mut editor = Editor::with_config(config)?;
        let helper = EditorHelper { sender: sender.clone(), draft: Arc::default() };
        editor.set_helper(Some(helper.clone()));
        let key = |code, modifiers| Event::from(KeyEvent(code, modifiers));
        editor.bind_sequence(
            key(KeyCode::Enter, Modifiers::NONE),
            EventHandler::Conditional(Box::new(Enter { helper: helper.clone(), indents: true })),
        );
        // Text that was typed ahead, or pasted into a dumb terminal, has its own indentation.
        editor.bind_sequence(
            key(KeyCode::Char('J'), Modifiers::CTRL),
            EventHandler::Conditional(Box::new(Enter { helper: helper.clone(), indents: false })),
        );
        editor
            .bind_sequence(key(KeyCode::Enter, Modifiers::ALT), EventHandler::Simple(Cmd::Newline));
        for back in
            [key(KeyCode::Backspace, Modifiers::NONE), key(KeyCode::Char('H'), Modifiers::CTRL)]
        {
            editor.bind_sequence(back, EventHandler::Conditional(Box::new(Backspace)));
        }
        let history = history::file();
        if let Some(file) = &history {
            let loaded = editor.load_history(file);
            debug!(?loaded, "loaded the history");
        }
        Ok(Self { editor, sender, history, helper, is_dumb: dumb_terminal::is_dumb() })
    }

    fn serve(&mut self, requests: &Receiver<()>) {
        while requests.recv().is_ok() {
            let event = match self.read() {
                Ok(text) => {
                    self.remember(&text);
                    EditorEvent::Text(text)
                }
                Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => {
                    EditorEvent::Cancelled
                }
                Err(ReadlineError::Eof) => EditorEvent::End,
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    // Discards the rest of a paste, which must not run.
                    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
                    EditorEvent::InvalidText
                }
                Err(error) => EditorEvent::Broken(error),
            };
            if self.sender.send(event).is_err() {
                return;
            }
        }
    }

    fn read(&mut self) -> rustyline::Result<String> {
        if self.is_dumb {
            return dumb_terminal::read(PROMPT, |text| self.helper.is_complete(text));
        }
        let (before, after) = self.helper.draft();
        let read = self.editor.readline_with_initial(PROMPT, (&before, &after));
        if !matches!(&read, Err(ReadlineError::Io(_))) {
            self.helper.note_draft("", 0);
        }
        read
    }

    fn remember(&mut self, text: &str) {
        let text = text.trim_end();
        if text.is_empty() || !self.editor.add_history_entry(text).unwrap_or(false) {
            return;
        }
        if let Some(file) = &self.history {
            let appended = self.editor.append_history(file);
            debug!(?appended, "stored the history");
        }
    }
}

/// Sends the queries of the editor, and keeps its draft.
#[derive(Clone)]
struct EditorHelper {
    sender: UnboundedSender<EditorEvent>,
    /// The text that is being edited, before and after the cursor.
    draft: Arc<Mutex<(String, String)>>,
}

impl EditorHelper {
    /// Sends a query. Returns `None` when the answer takes too long, so that typing can continue.
    fn ask<T>(&self, query: impl FnOnce(Sender<T>) -> EditorEvent) -> Option<T> {
        let (sender, answer) = channel();
        self.sender.send(query(sender)).ok()?;
        answer.recv_timeout(ANSWER_TIMEOUT).ok()
    }

    fn draft(&self) -> (String, String) {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_draft(&self, text: &str, position: usize) {
        let (before, after) = text.split_at_checked(position).unwrap_or((text, ""));
        let mut draft = self.draft.lock().unwrap_or_else(PoisonError::into_inner);
        *draft = (before.to_owned(), after.to_owned());
    }

    fn is_complete(&self, text: &str) -> bool {
        // Most texts need no query.
        if text.trim().is_empty() || meta_command::is_command(text) {
            return true;
        }
        self.ask(|answer| EditorEvent::IsComplete(text.to_owned(), answer)).unwrap_or(true)
    }
}

impl Helper for EditorHelper {}

impl Highlighter for EditorHelper {}

impl Hinter for EditorHelper {
    type Hint = String;

    /// Returns no hint. The editor calls this for each change, which keeps the draft up to date in case reading fails.
    fn hint(&self, line: &str, position: usize, _: &Context<'_>) -> Option<String> {
        self.note_draft(line, position);
        None
    }
}

/// The handler of Enter checks completeness.
impl Validator for EditorHelper {}

impl Completer for EditorHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        text: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &text[..position];
        if meta_command::is_command(before) {
            return Ok((0, pairs(meta_command::completions(before))));
        }
        let line = before.rsplit('\n').next().unwrap_or_default();
        if line.trim().is_empty() {
            let step = Pair { display: String::new(), replacement: INDENTATION.to_owned() };
            return Ok((position, vec![step]));
        }
        let found =
            self.ask(|answer| EditorEvent::Names(before.to_owned(), answer)).unwrap_or_default();
        if !before.ends_with(&found.word) {
            return Ok((position, Vec::new()));
        }
        Ok((position - found.word.len(), pairs(found.names.into_iter().filter(|n| is_name(n)))))
    }
}

/// Returns true for a plain name. Answers of a sandbox are untrusted, and are written to the terminal.
fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn pairs(names: impl IntoIterator<Item = String>) -> Vec<Pair> {
    names.into_iter().map(|name| Pair { display: name.clone(), replacement: name }).collect()
}

/// Handler of Enter: accepts complete code, and inserts a line otherwise.
struct Enter {
    helper: EditorHelper,
    indents: bool,
}

impl ConditionalEventHandler for Enter {
    fn handle(
        &self,
        _: &Event,
        _: RepeatCount,
        _: bool,
        context: &EventContext<'_>,
    ) -> Option<Cmd> {
        let text = context.line();
        if self.helper.is_complete(text) {
            return Some(Cmd::AcceptLine);
        }
        let line = text[..context.pos()].rsplit('\n').next().unwrap_or_default();
        let indentation = if self.indents { next_indentation(line) } else { String::new() };
        Some(Cmd::Insert(1, format!("\n{indentation}")))
    }
}

/// Handler of Backspace: removes one step in the indentation of a line.
struct Backspace;

impl ConditionalEventHandler for Backspace {
    fn handle(
        &self,
        _: &Event,
        _: RepeatCount,
        _: bool,
        context: &EventContext<'_>,
    ) -> Option<Cmd> {
        let (before, after) = context.line().split_at(context.pos());
        let line = before.rsplit('\n').next().unwrap_or_default();
        // Dedenting an earlier line would also move the lines below it.
        let is_last = !after.contains('\n');
        (is_last && is_indentation(line)).then_some(Cmd::Dedent(Movement::WholeLine))
    }
}

fn is_indentation(before: &str) -> bool {
    !before.is_empty() && before.bytes().all(|byte| byte == b' ')
}

/// Returns the indentation of the line after this one.
fn next_indentation(line: &str) -> String {
    let own = &line[..line.len() - line.trim_start().len()];
    let text = line.trim();
    if text.ends_with(':') {
        return format!("{own}{INDENTATION}");
    }
    let ends_block = ["return", "pass", "break", "continue", "raise"];
    let first = text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    if ends_block.contains(&first) {
        return own.strip_suffix(INDENTATION).unwrap_or_default().to_owned();
    }
    own.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_indented_as_in_python() {
        for (line, next) in [
            ("for n in x:", 4),
            ("    if n:  ", 8),
            ("    x = 1", 4),
            ("        return x", 4),
            ("    returned = 1", 4),
            ("    pass", 0),
            ("x = (", 0),
            ("", 0),
        ] {
            assert_eq!(next_indentation(line), " ".repeat(next), "{line:?}");
        }
    }

    #[test]
    fn names_have_no_control_characters() {
        assert!(is_name("größe_2"));
        assert!(!is_name("\u{1b}[2J"));
        assert!(!is_name("a b"));
    }
}
