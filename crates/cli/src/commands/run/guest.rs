//! The program while it runs: its events, and what Ctrl-C does to it.

use std::cell::{Cell, RefCell};
use std::future;
use std::io::{self, IsTerminal as _};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use code_sandboxes::{
    CallContext, Command, CommandBuilder, CommandControl, CommandEvent, CommandOutcome,
    CommandSpec, Error, Event, EventKind, EventStream, FailureKind, InterpreterState,
    NetworkDenial, RunOutcome, Sandbox, random_hex, unix_now,
};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::debug;

use crate::input::ProgramInput;
use crate::printer::Printer;
use crate::problem::Problem;

const SIGINT: i32 = 2;
/// How long a program may take for its end before somebody is told how to end it.
const PATIENCE: Duration = Duration::from_secs(1);

/// A command with its limit and its standard input.
pub(crate) fn command(
    sandbox: &Sandbox,
    line: impl Into<CommandSpec>,
    timeout: Option<Duration>,
    stdin: Option<ProgramInput>,
) -> CommandBuilder<'_> {
    let command = sandbox.commands().run(line);
    let command = match timeout {
        Some(limit) => command.timeout(limit),
        None => command,
    };
    match stdin {
        Some(stdin) => command.stdin_stream(stdin.stream),
        None => command,
    }
}

/// Ctrl-C, one at a time.
#[derive(Debug)]
pub(crate) struct Interrupts(Signal);

impl Interrupts {
    /// From now on Ctrl-C no longer ends this process by itself.
    pub(crate) fn listen() -> Result<Self, Problem> {
        signal(SignalKind::interrupt())
            .map(Self)
            .map_err(|error| Problem::host("listening for Ctrl-C", error))
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            future::pending().await
        }
    }

    /// Forgets those that came while nobody waited.
    pub(crate) fn forget(&mut self) {
        while self.0.recv().now_or_never().flatten().is_some() {}
    }
}

/// What runs, and whether it was interrupted.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    running: RefCell<Running>,
    interrupted: Rc<Cell<bool>>,
    placed: RefCell<Option<String>>,
}

#[derive(Clone, Debug, Default)]
enum Running {
    /// Nothing of the user's yet.
    #[default]
    Nothing,
    /// In that context.
    Code(Option<String>),
    Command(Arc<dyn CommandControl>),
}

impl Guest {
    /// Notes a file of ours in the working directory.
    pub(crate) fn placed(&self, path: Option<String>) {
        *self.placed.borrow_mut() = path;
    }

    /// The file of ours in the working directory, to be removed.
    pub(crate) fn take_placed(&self) -> Option<String> {
        self.placed.borrow_mut().take()
    }

    /// Says that code runs in the interpreter.
    pub(crate) fn follow_code(&self, context: Option<String>) {
        *self.running.borrow_mut() = Running::Code(context);
    }

    /// Says that a command runs, and gives its events as if it were code.
    pub(crate) fn follow_command(&self, command: Command) -> EventStream {
        *self.running.borrow_mut() = Running::Command(Arc::clone(&command.control));
        events(command)
    }

    /// The command that runs, if it is one.
    pub(crate) fn command(&self) -> Option<Arc<dyn CommandControl>> {
        match &*self.running.borrow() {
            Running::Command(control) => Some(Arc::clone(control)),
            Running::Nothing | Running::Code(_) => None,
        }
    }

    /// Says that somebody wants it to end.
    pub(crate) fn note_interrupt(&self) {
        self.interrupted.set(true);
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.get()
    }

    /// The same, for what is told of the run while it goes on.
    pub(super) fn interruption(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.interrupted)
    }

    /// Passes the first Ctrl-C on to the program. Returns when there is none to pass it to, and at the second one.
    pub(crate) async fn heed(
        &self,
        interrupts: &mut Interrupts,
        sandbox: &Sandbox,
        printer: &Printer,
    ) {
        interrupts.next().await;
        self.interrupted.set(true);
        let running = self.running.borrow().clone();
        let passed_on = match running {
            Running::Nothing => Ok(false),
            Running::Code(context) => interrupt(sandbox, context.as_deref()).await,
            Running::Command(control) => control.signal(SIGINT, true).await.map(|()| true),
        };
        debug!(?passed_on, "interrupted");
        if !passed_on.unwrap_or(false) {
            return;
        }
        tokio::select! {
            () = interrupts.next() => return,
            () = tokio::time::sleep(PATIENCE) => {}
        }
        if io::stderr().is_terminal() {
            printer.note("it goes on; a second Ctrl-C ends it");
        }
        interrupts.next().await;
    }
}

async fn interrupt(sandbox: &Sandbox, context: Option<&str>) -> Result<bool, Error> {
    sandbox.instance("interrupt")?.code()?.interrupt(&CallContext::new(), context).await
}

/// The events of a command in the vocabulary of code, so that one report serves both.
fn events(command: Command) -> EventStream {
    let run_id = random_hex(8);
    let mut seq = 0;
    Box::pin(command.events.filter_map(move |event| {
        let event = kind(event).map(|kind| {
            let event = Event { run_id: run_id.clone(), seq, timestamp: unix_now(), kind };
            seq += 1;
            event
        });
        future::ready(event)
    }))
}

fn kind(event: CommandEvent) -> Option<EventKind> {
    match event {
        CommandEvent::Output { stream, data } => Some(EventKind::Output { stream, data }),
        CommandEvent::Hint { text } => Some(EventKind::Hint { text }),
        CommandEvent::Finished(outcome) => Some(EventKind::Finished(finished(outcome))),
        // Nothing that a one-shot run could show.
        _ => None,
    }
}

fn finished(outcome: CommandOutcome) -> RunOutcome {
    let completed_at = unix_now();
    let state = match outcome.failure.as_ref().map(|failure| failure.kind) {
        // The interpreter of the sandbox has gone with it.
        Some(FailureKind::Terminated | FailureKind::Expired | FailureKind::ConnectionLost) => {
            InterpreterState::Lost
        }
        _ => InterpreterState::Kept,
    };
    RunOutcome {
        state,
        started_at: completed_at - outcome.duration,
        completed_at,
        execution_count: 1,
        exit_code: Some(outcome.exit_code),
        failure: outcome.failure,
        usage: outcome.usage,
        hint: outcome.hint.or_else(|| NetworkDenial::hint(&outcome.network_denied)),
        network_denied: outcome.network_denied,
        stdin_read: outcome.stdin_read,
        ..RunOutcome::default()
    }
}
