//! Commands beside the interpreter: what starting one costs, and how fast a terminal answers.

use std::process::Command as HostCommand;
use std::time::Instant;

use code_sandboxes::{Command, CommandEvent, IsolationMode, PtySize, Sandbox};
use futures_util::StreamExt as _;

use crate::row::{Bar, Row};
use crate::sample::{Measured, alone, bare, compare, since, text};
use crate::sandboxes;
use crate::setup::Setup;

/// `true` in a cell against a bare start of it on this host, and what the way there may cost besides.
pub(crate) async fn start(setup: &Setup) -> Row {
    let (name, bar) = ("command `true`, in a cell", Bar::RatioAnd(1.5, 0.3));
    let sandbox = match Setup::builder(IsolationMode::Strict).create().await {
        Ok(sandbox) => sandbox,
        Err(error) => return Row::compared(name, Err(text(error)), bar),
    };
    let measured = compare(
        setup.samples(),
        "posix_spawn of `true`",
        async || sandboxes::command(&sandbox).await,
        async || bare(&mut HostCommand::new("/bin/true")),
    )
    .await;
    Row::compared(name, measured, bar)
}

/// From a byte that is typed to the byte that a program on the terminal sends back.
pub(crate) async fn echo(setup: &Setup) -> Row {
    Row::plain("echo of a program on a terminal", "ms", round_trip(setup).await, Bar::Below(1.0))
}

async fn round_trip(setup: &Setup) -> Measured {
    let sandbox = Setup::builder(IsolationMode::Strict).create().await.map_err(text)?;
    let mut terminal = Terminal::open(&sandbox).await?;
    let measured = alone(setup.samples(), async || {
        let began = Instant::now();
        terminal.command.control.write_stdin("x".into()).await.map_err(text)?;
        terminal.read_until(b"x").await?;
        Ok(since(began))
    })
    .await;
    sandbox.kill().await.map_err(text)?;
    measured
}

struct Terminal {
    command: Command,
}

impl Terminal {
    async fn open(sandbox: &Sandbox) -> Measured<Self> {
        // Without echo of its own, so that what comes back has been through the program.
        let line = "stty raw -echo; echo ready; exec cat";
        let run = sandbox.commands().run(line).pty(PtySize::default());
        let mut terminal = Self { command: run.start().await.map_err(text)? };
        terminal.read_until(b"\n").await?;
        Ok(terminal)
    }

    async fn read_until(&mut self, end: &[u8]) -> Measured<()> {
        loop {
            match self.command.events.next().await {
                Some(CommandEvent::Output { data, .. }) if data.ends_with(end) => return Ok(()),
                Some(CommandEvent::Output { .. }) => {}
                other => return Err(format!("the terminal ended: {other:?}")),
            }
        }
    }
}
