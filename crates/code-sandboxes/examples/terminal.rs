//! A shell on a terminal, a server in the background that is connected to again, and a program given as text.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use code_sandboxes::{Command, CommandEvent, PtySize, Sandbox};
use futures_util::StreamExt as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let sandbox = Sandbox::builder().create().await?;

    let size = PtySize { columns: 100, rows: 30 };
    let mut shell = sandbox.commands().run("stty -echo; exec sh").pty(size).start().await?;
    shell.control.write_stdin("stty size; exit 3\n".into()).await?;
    println!("the shell said {:?}", rest(&mut shell).await);

    // It goes on without us. What it prints is kept, within bounds.
    let line = "echo listening; while read line; do echo \"got $line\"; done; echo bye";
    let server = sandbox.commands().run(line).background().interactive().start().await?;
    let id = server.id.clone();
    drop(server);

    let mut server = sandbox.commands().connect(&id).await?;
    server.control.write_stdin("a request\n".into()).await?;
    server.control.close_stdin().await?;
    println!("the server said {:?}", rest(&mut server).await);
    for command in sandbox.commands().list().await? {
        println!("ended with {:?}: {}", command.exit_code, command.command);
    }

    let text = "import sys\nprint('hello', *sys.argv[1:])";
    let result = sandbox.commands().run_script("python", text, ["from", "a script"]).await?;
    print!("{}", result.stdout);
    sandbox.terminate().await
}

/// What it prints until it ends.
async fn rest(command: &mut Command) -> String {
    let mut output = Vec::new();
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { data, .. } => output.extend_from_slice(&data),
            CommandEvent::Finished(outcome) => println!("status {}", outcome.exit_code),
            _ => {}
        }
    }
    String::from_utf8_lossy(&output).into_owned()
}
