//! The running program: its events, and how Ctrl-C reaches it.

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

use crate::error::CliError;
use crate::input::ProgramInput;
use crate::printer::Printer;

const SIGINT: i32 = 2;
/// Delay after which the user is shown how to end a program that does not react to Ctrl-C.
const SLOW_INTERRUPT_DELAY: Duration = Duration::from_secs(1);

/// Makes a command with its limit and its standard input.
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

/// Receives Ctrl-C.
#[derive(Debug)]
pub(crate) struct Interrupts(Signal);

impl Interrupts {
    /// Starts to listen. Ctrl-C no longer ends this process by itself.
    pub(crate) fn listen() -> Result<Self, CliError> {
        signal(SignalKind::interrupt())
            .map(Self)
            .map_err(|error| CliError::host("listening for Ctrl-C", error))
    }

    /// Waits for the next Ctrl-C.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            future::pending().await
        }
    }

    /// Discards earlier ones.
    pub(crate) fn clear(&mut self) {
        while self.0.recv().now_or_never().flatten().is_some() {}
    }
}

/// The program that runs, and whether it was interrupted.
#[derive(Debug, Default)]
pub(crate) struct RunningProgram {
    running: RefCell<Running>,
    interrupted: Rc<Cell<bool>>,
    placed: RefCell<Option<String>>,
}

#[derive(Clone, Debug, Default)]
enum Running {
    /// No program of the user yet.
    #[default]
    Nothing,
    /// Code in a context.
    Code(Option<String>),
    Command(Arc<dyn CommandControl>),
}

impl RunningProgram {
    /// Records the program file that was put into the working directory.
    pub(crate) fn placed(&self, path: Option<String>) {
        *self.placed.borrow_mut() = path;
    }

    /// Takes the program file in the working directory, to remove it.
    pub(crate) fn take_placed(&self) -> Option<String> {
        self.placed.borrow_mut().take()
    }

    /// Records that code runs in a context.
    pub(crate) fn follow_code(&self, context: Option<String>) {
        *self.running.borrow_mut() = Running::Code(context);
    }

    /// Records that a command runs, and returns its events as those of code.
    pub(crate) fn follow_command(&self, command: Command) -> EventStream {
        *self.running.borrow_mut() = Running::Command(Arc::clone(&command.control));
        events(command)
    }

    /// Returns the controls of the program if it is a command.
    pub(crate) fn command(&self) -> Option<Arc<dyn CommandControl>> {
        match &*self.running.borrow() {
            Running::Command(control) => Some(Arc::clone(control)),
            Running::Nothing | Running::Code(_) => None,
        }
    }

    /// Records that the user interrupted the program.
    pub(crate) fn note_interrupt(&self) {
        self.interrupted.set(true);
    }

    /// Returns true after Ctrl-C.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.get()
    }

    /// Returns the flag of [`RunningProgram::is_interrupted`].
    pub(super) fn interruption(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.interrupted)
    }

    /// Forwards the first Ctrl-C to the program. Returns when no program runs, and at the second Ctrl-C.
    pub(crate) async fn forward_interrupts(
        &self,
        interrupts: &mut Interrupts,
        sandbox: &Sandbox,
        printer: &Printer,
    ) {
        interrupts.next().await;
        self.interrupted.set(true);
        let running = self.running.borrow().clone();
        let forwarded = match running {
            Running::Nothing => Ok(false),
            Running::Code(context) => interrupt(sandbox, context.as_deref()).await,
            Running::Command(control) => control.signal(SIGINT, true).await.map(|()| true),
        };
        debug!(?forwarded, "interrupted");
        if !forwarded.unwrap_or(false) {
            return;
        }
        tokio::select! {
            () = interrupts.next() => return,
            () = tokio::time::sleep(SLOW_INTERRUPT_DELAY) => {}
        }
        if io::stderr().is_terminal() {
            printer.note("the program continues; a second Ctrl-C ends it");
        }
        interrupts.next().await;
    }
}

async fn interrupt(sandbox: &Sandbox, context: Option<&str>) -> Result<bool, Error> {
    sandbox.instance("interrupt")?.code()?.interrupt(&CallContext::new(), context).await
}

/// Converts the events of a command to those of code, so that one report serves both.
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
        // Events of background commands.
        _ => None,
    }
}

fn finished(outcome: CommandOutcome) -> RunOutcome {
    let completed_at = unix_now();
    let state = match outcome.failure.as_ref().map(|failure| failure.kind) {
        // The sandbox has ended, and its interpreters with it.
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
        findings: outcome.findings,
        stdin_read: outcome.stdin_read,
        ..RunOutcome::default()
    }
}
