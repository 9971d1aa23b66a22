//! Starts a kernel of this machine, runs code in it, and shows what comes of it.
//!
//!     cargo run --features manager --example execute -- python3 'print("hello"); 6 * 7'
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks on its terminal")]

use std::error::Error;

use jupyter_protocol::ExecuteRequest;
use jupyter_protocol::execution::Event;
use jupyter_protocol::kernelspec::Search;
use jupyter_protocol::manager::{Kernel, KernelOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "python3".to_owned());
    let code = arguments.next().unwrap_or_else(|| "print('hello'); 6 * 7".to_owned());

    let search = Search::from_env();
    let installed = search.find(&name)?;
    let mut options = KernelOptions::default();
    options.python = search.python().cloned();
    // If the process ends at once, this does too, with what it wrote.
    let kernel = Kernel::start_with(&installed, options).await?;
    let version = &kernel.kernel_info().implementation_version;
    eprintln!("{} {version}", installed.spec.display_name);
    let done = run(&kernel, code).await;
    kernel.shutdown().await?;
    done
}

async fn run(kernel: &Kernel, code: String) -> Result<(), Box<dyn Error>> {
    let mut running = kernel.client().execute(ExecuteRequest::new(code)).await?;
    while let Some(event) = running.next().await {
        match event {
            Event::Stream(stream) if stream.name.as_str() == "stderr" => eprint!("{}", stream.text),
            Event::Stream(stream) => print!("{}", stream.text),
            Event::Result { result, .. } => println!("{}", result.data.plain().unwrap_or_default()),
            Event::Display { display, .. } => {
                println!("{}", display.data.plain().unwrap_or_default())
            }
            Event::Error(error) => eprintln!("{}", error.traceback.join("\n")),
            Event::Lost(loss) => eprintln!("output is missing here: {loss:?}"),
            Event::Finished(outcome) if !outcome.is_ok() => {
                return Err(outcome
                    .error
                    .map_or("it did not end well".into(), |error| error.ename)
                    .into());
            }
            _ => {}
        }
    }
    Ok(())
}
