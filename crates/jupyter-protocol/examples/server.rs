//! Runs code on a Jupyter Server, in a kernel that is started for it and deleted afterwards.
//!
//!     cargo run --features websocket --example server -- 'http://127.0.0.1:8888/lab?token=..' 'print(1)'
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks on its terminal")]

use std::error::Error;
use std::time::Duration;

use jupyter_protocol::ExecuteRequest;
use jupyter_protocol::execution::Event;
use jupyter_protocol::websocket::{Options, Server};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("the address of a server is missing")?;
    let code = arguments.next().unwrap_or_else(|| "print('hello')".to_owned());

    let server = Server::from_page(&address)?;
    println!("Jupyter Server {}", server.version().await?);
    let specs = server.kernelspecs().await?;
    println!("kernels: {}", specs.kernelspecs.keys().cloned().collect::<Vec<_>>().join(", "));
    let kernel = server.start_kernel(&specs.default.unwrap_or_default(), None).await?;
    let done = run(&server, &kernel.id, &code).await;
    server.delete_kernel(&kernel.id).await?;
    done
}

async fn run(server: &Server, kernel: &str, code: &str) -> Result<(), Box<dyn Error>> {
    let client = server.connect(kernel, Options::default()).await?;
    client.ready(Duration::from_secs(60)).await?;
    let mut running = client.execute(ExecuteRequest::new(code)).await?;
    while let Some(event) = running.next().await {
        match event {
            Event::Stream(stream) => print!("{}", stream.text),
            Event::Result { result, .. } => println!("{}", result.data.plain().unwrap_or_default()),
            Event::Error(error) => eprintln!("{}: {}", error.ename, error.evalue),
            _ => {}
        }
    }
    Ok(())
}
