//! Starts a kernel of this machine, runs code in it, and shows what comes of it. Code that asks for input gets what is typed,
//! and Ctrl+C interrupts it.
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
    // If the process ends at once, this does too, with what it wrote.
    let kernel = Kernel::start(&installed).await?;
    let version = &kernel.kernel_info().implementation_version;
    eprintln!("{} {version}", installed.spec.display_name);
    let done = run(&kernel, &code).await;
    kernel.shutdown().await?;
    Ok(if done? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the code went well.
async fn run(kernel: &Kernel, code: &str) -> Result<bool, Box<dyn Error>> {
    let mut running = kernel.client().execute(ExecuteRequest::new(code).with_stdin()).await?;
    loop {
        // The kernel is in a process group of its own, so the terminal interrupts this program alone.
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

/// Gives a line of this program's input to the code. At its end, the line is empty.
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
