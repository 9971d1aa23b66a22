//! The line editor, on a thread of its own, because it waits for keys. What it does not know it asks.

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

use super::ask::Names;
use super::{colon, history, simple};
use crate::problem::Problem;

const PROMPT: &str = ">>> ";
/// Ends what the editor began on the terminal: pastes are no longer marked, and the line is over.
pub(super) const LEFT: &[u8] = b"\x1b[?2004l\r\n";
/// One step of indentation.
const INDENTATION: &str = "    ";
/// Its characters.
const STEP: u8 = 4;
const MOST_REMEMBERED: usize = 10_000;
/// A bit longer than the answers may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// What comes from the editor.
#[derive(Debug)]
pub(super) enum Typed {
    /// Code, or a command of the session.
    Text(String),
    /// Ctrl-C.
    Nothing,
    /// Something that is no text. What came before it is still there to be edited.
    NoText,
    /// Ctrl-D.
    End,
    /// The terminal cannot be read.
    Broken(ReadlineError),
    /// Whether this code is complete.
    IsComplete(String, Sender<bool>),
    /// Which names may follow this text.
    Names(String, Sender<Names>),
}

/// The editor, seen from the rest.
#[derive(Debug)]
pub(super) struct Keyboard {
    reads: Sender<()>,
    typed: UnboundedReceiver<Typed>,
}

impl Keyboard {
    /// Starts the editor. It reads nothing before it is asked to.
    pub(super) fn start() -> Result<Self, Problem> {
        let (reads, asked) = channel();
        let (sender, typed) = unbounded_channel();
        let run = move || match Lines::new(sender.clone()) {
            Ok(mut lines) => lines.serve(&asked),
            Err(error) => drop(sender.send(Typed::Broken(error))),
        };
        let spawned = thread::Builder::new().name("editor".into()).spawn(run);
        spawned.map_err(|error| Problem::host("starting the line editor", error))?;
        Ok(Self { reads, typed })
    }

    /// Lets the editor read until something is typed. Questions come before.
    pub(super) fn read(&self) {
        // A thread that is gone has said why.
        let _ = self.reads.send(());
    }

    /// What is next from the editor.
    pub(super) async fn next(&mut self) -> Typed {
        let gone = || Typed::Broken(io::Error::other("the line editor is gone").into());
        self.typed.recv().await.unwrap_or_else(gone)
    }
}

/// The other side, on its thread.
struct Lines {
    editor: Editor<Questions, DefaultHistory>,
    sender: UnboundedSender<Typed>,
    history: Option<PathBuf>,
    questions: Questions,
    is_simple: bool,
}

impl Lines {
    fn new(sender: UnboundedSender<Typed>) -> rustyline::Result<Self> {
        let config = Config::builder()
            .max_history_size(MOST_REMEMBERED)?
            .history_ignore_dups(true)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .indent_size(STEP)
            .build();
        let mut editor = Editor::with_config(config)?;
        let questions = Questions { sender: sender.clone(), draft: Arc::default() };
        editor.set_helper(Some(questions.clone()));
        let key = |code, modifiers| Event::from(KeyEvent(code, modifiers));
        editor.bind_sequence(
            key(KeyCode::Enter, Modifiers::NONE),
            EventHandler::Conditional(Box::new(Enter {
                questions: questions.clone(),
                indents: true,
            })),
        );
        // What was typed ahead, or pasted into a simple terminal, has its own indentation.
        editor.bind_sequence(
            key(KeyCode::Char('J'), Modifiers::CTRL),
            EventHandler::Conditional(Box::new(Enter {
                questions: questions.clone(),
                indents: false,
            })),
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
            debug!(?loaded, "what was typed before");
        }
        Ok(Self { editor, sender, history, questions, is_simple: simple::is_simple() })
    }

    fn serve(&mut self, asked: &Receiver<()>) {
        while asked.recv().is_ok() {
            let typed = match self.read() {
                Ok(text) => {
                    self.remember(&text);
                    Typed::Text(text)
                }
                Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Typed::Nothing,
                Err(ReadlineError::Eof) => Typed::End,
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    // The rest of a paste must not run as if it had been typed.
                    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
                    Typed::NoText
                }
                Err(error) => Typed::Broken(error),
            };
            if self.sender.send(typed).is_err() {
                return;
            }
        }
    }

    fn read(&mut self) -> rustyline::Result<String> {
        if self.is_simple {
            return simple::read(PROMPT, |text| self.questions.is_complete(text));
        }
        let (before, after) = self.questions.draft();
        let read = self.editor.readline_with_initial(PROMPT, (&before, &after));
        if !matches!(&read, Err(ReadlineError::Io(_))) {
            self.questions.note_draft("", 0);
        }
        read
    }

    fn remember(&mut self, text: &str) {
        let text = text.trim_end();
        if text.is_empty() || !self.editor.add_history_entry(text).unwrap_or(false) {
            return;
        }
        if let Some(file) = &self.history {
            let remembered = self.editor.append_history(file);
            debug!(?remembered, "typed");
        }
    }
}

/// The way to the answers.
#[derive(Clone)]
struct Questions {
    sender: UnboundedSender<Typed>,
    /// What is being edited, before the cursor and after it.
    draft: Arc<Mutex<(String, String)>>,
}

impl Questions {
    /// Asks, and gives up when the answer takes too long: typing goes on.
    fn ask<T>(&self, question: impl FnOnce(Sender<T>) -> Typed) -> Option<T> {
        let (sender, answer) = channel();
        self.sender.send(question(sender)).ok()?;
        answer.recv_timeout(PATIENCE).ok()
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
        // Most of what is typed needs no question.
        if text.trim().is_empty() || colon::is_command(text) {
            return true;
        }
        self.ask(|answer| Typed::IsComplete(text.to_owned(), answer)).unwrap_or(true)
    }
}

impl Helper for Questions {}

impl Highlighter for Questions {}

impl Hinter for Questions {
    type Hint = String;

    /// There are no hints. But this is told of every change, and so knows what is there when the editor fails.
    fn hint(&self, line: &str, position: usize, _: &Context<'_>) -> Option<String> {
        self.note_draft(line, position);
        None
    }
}

/// Enter has asked already.
impl Validator for Questions {}

impl Completer for Questions {
    type Candidate = Pair;

    fn complete(
        &self,
        text: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &text[..position];
        if colon::is_command(before) {
            return Ok((0, pairs(colon::completions(before))));
        }
        let line = before.rsplit('\n').next().unwrap_or_default();
        if line.trim().is_empty() {
            let step = Pair { display: String::new(), replacement: INDENTATION.to_owned() };
            return Ok((position, vec![step]));
        }
        let found = self.ask(|answer| Typed::Names(before.to_owned(), answer)).unwrap_or_default();
        if !before.ends_with(&found.word) {
            return Ok((position, Vec::new()));
        }
        Ok((position - found.word.len(), pairs(found.names.into_iter().filter(|n| is_name(n)))))
    }
}

/// What comes from a sandbox may be anything, and goes to the terminal.
fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn pairs(names: impl IntoIterator<Item = String>) -> Vec<Pair> {
    names.into_iter().map(|name| Pair { display: name.clone(), replacement: name }).collect()
}

/// What the key Enter does: it runs complete code, and begins a line otherwise.
struct Enter {
    questions: Questions,
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
        if self.questions.is_complete(text) {
            return Some(Cmd::AcceptLine);
        }
        let line = text[..context.pos()].rsplit('\n').next().unwrap_or_default();
        let indentation = if self.indents { next_indentation(line) } else { String::new() };
        Some(Cmd::Insert(1, format!("\n{indentation}")))
    }
}

/// What the key Backspace does in the indentation of a line: it takes a whole step back.
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
        // Further up, the lines below would move along.
        let is_last = !after.contains('\n');
        (is_last && is_indentation(line)).then_some(Cmd::Dedent(Movement::WholeLine))
    }
}

fn is_indentation(before: &str) -> bool {
    !before.is_empty() && before.bytes().all(|byte| byte == b' ')
}

/// How far the line after this one begins to the right.
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
    fn lines_begin_where_python_wants_them() {
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
    fn names_do_nothing_to_a_terminal() {
        assert!(is_name("größe_2"));
        assert!(!is_name("\u{1b}[2J"));
        assert!(!is_name("a b"));
    }
}
