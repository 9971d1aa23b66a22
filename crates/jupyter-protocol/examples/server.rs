//! Runs code on a Jupyter Server, in a kernel that is started before and deleted afterwards.
//!
//!     cargo run --features websocket --example server -- 'http://127.0.0.1:8888/lab?token=..' 'print(1)'
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks on its terminal")]

use std::error::Error;
use std::process::ExitCode;

use jupyter_protocol::execution::Event;
use jupyter_protocol::websocket::{ServerClient, ServerKernel};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("the address of a server is missing")?;
    let code = arguments.next().unwrap_or_else(|| "print('hello')".to_owned());

    let server = ServerClient::from_page(&address)?;
    eprintln!("Jupyter Server {}", server.version().await?);
    let specs = server.kernelspecs().await?;
    eprintln!("kernels: {}", specs.kernelspecs.keys().cloned().collect::<Vec<_>>().join(", "));
    let name = specs.default.ok_or("the server names no kernel to start")?;
    let kernel = ServerKernel::start(&server, &name).await?;
    let done = run(&kernel, &code).await;
    kernel.shutdown().await?;
    Ok(if done? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs code. Returns true if it succeeded and no output is missing.
async fn run(kernel: &ServerKernel, code: &str) -> Result<bool, Box<dyn Error>> {
    let mut running = kernel.client().execute(code).await?;
    while let Some(event) = running.next().await {
        match event {
            Event::Stream(stream) => print!("{}", stream.text),
            Event::Result { result, .. } => println!("{}", result.data.plain().unwrap_or_default()),
            Event::Error(error) => eprintln!("{}: {}", error.ename, error.evalue),
            Event::Lost(loss) => eprintln!("output is missing here: {loss:?}"),
            Event::Finished(outcome) => {
                if outcome.reply.is_none() {
                    eprintln!("it did not end well: {:?}", outcome.end);
                }
                return Ok(outcome.is_ok() && outcome.losses.is_none());
            }
            _ => {}
        }
    }
    Ok(false)
}
