//! Starts a kernel of this machine, runs code in it, and prints its output. Standard input answers the questions of the
//! code, and Ctrl+C interrupts it.
//!
//!     cargo run --features manager --example execute -- python3 'print("hello", input("name? ")); 6 * 7'
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks on its terminal")]

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use jupyter_protocol::ExecuteRequest;
use jupyter_protocol::client::ExecutionStream;
use jupyter_protocol::execution::{Event, Outcome};
use jupyter_protocol::kernelspec::Search;
use jupyter_protocol::manager::Kernel;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "python3".to_owned());
    let code = arguments.next().unwrap_or_else(|| "print('hello'); 6 * 7".to_owned());

    let installed = Search::from_env().find(&name)?;
    // Fails with the standard error of the process if it ends early.
    let kernel = Kernel::start(&installed).await?;
    let version = &kernel.kernel_info().implementation_version;
    eprintln!("{} {version}", installed.spec.display_name);
    let done = run(&kernel, &code).await;
    kernel.shutdown().await?;
    Ok(if done? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs code. Returns true if it succeeded.
async fn run(kernel: &Kernel, code: &str) -> Result<bool, Box<dyn Error>> {
    let mut running = kernel.client().execute(ExecuteRequest::new(code).with_stdin()).await?;
    loop {
        // The kernel has its own process group, so the terminal interrupts only this program.
        let event = tokio::select! {
            event = running.next() => event,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                kernel.interrupt().await?;
                continue;
            }
        };
        match event {
            Some(Event::InputRequest(asked)) => answer(&mut running, &asked.prompt).await?,
            Some(Event::Finished(outcome)) => return Ok(show_end(&outcome)),
            Some(event) => show(&event)?,
            None => return Ok(false),
        }
    }
}

/// Answers a question with a line of standard input, or with an empty one at its end.
async fn answer(running: &mut ExecutionStream, prompt: &str) -> Result<(), Box<dyn Error>> {
    print!("{prompt}");
    std::io::stdout().flush()?;
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    running.reply_input(line.await??.trim_end_matches('\n')).await?;
    Ok(())
}

fn show(event: &Event) -> std::io::Result<()> {
    match event {
        Event::Stream(stream) if stream.name.as_str() == "stderr" => eprint!("{}", stream.text),
        Event::Stream(stream) => print!("{}", stream.text),
        Event::Result { result, .. } => println!("{}", result.data.plain().unwrap_or_default()),
        Event::Display { display, .. } => println!("{}", display.data.plain().unwrap_or_default()),
        Event::Error(error) => eprintln!("{}", error.traceback.join("\n")),
        Event::Lost(loss) => eprintln!("output is missing here: {loss:?}"),
        _ => {}
    }
    std::io::stdout().flush()
}

fn show_end(outcome: &Outcome) -> bool {
    if outcome.reply.is_none() {
        eprintln!("it did not end well: {:?}", outcome.end);
    }
    outcome.is_ok()
}
