//! Starts a kernel of this machine, runs code in it, and shows what comes of it.
//!
//!     cargo run --features zmq --example execute -- python3 'print("hello"); 6 * 7'
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks on its terminal")]

use std::error::Error;
use std::process::{Child, Stdio};
use std::time::Duration;

use jupyter_protocol::execution::Event;
use jupyter_protocol::kernelspec::{Launch, Search};
use jupyter_protocol::{ConnectionInfo, ExecuteRequest, zmq};

/// A process that ends with the program.
struct Kernel(Child);

impl Drop for Kernel {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "python3".to_owned());
    let code = arguments.next().unwrap_or_else(|| "print('hello'); 6 * 7".to_owned());

    let search = Search::from_env();
    let kernel = search.find(&name)?;
    let folder = tempfile::tempdir()?;
    let info = ConnectionInfo::ipc(folder.path().join("k"));
    let file = folder.path().join(ConnectionInfo::new_file_name());
    info.write_new(&file)?;
    let mut command = kernel.command(&Launch::new(&file).with_python(search.python()))?;
    let _kernel = Kernel(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);

    let client = zmq::connect(&info, zmq::Options::default()).await?;
    let ready = client.ready(Duration::from_secs(60)).await?;
    eprintln!("{} {}", kernel.spec.display_name, ready.kernel_info.implementation_version);

    let mut running = client.execute(ExecuteRequest::new(code)).await?;
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
