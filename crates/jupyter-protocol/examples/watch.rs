//! Watches a kernel that another client uses, such as a notebook: prints its code and its output.
//!
//!     cargo run --features zmq --example watch -- CONNECTION_FILE
//!
//! Without an argument, the newest connection file of this user is used.
#![expect(clippy::print_stdout, reason = "an example talks on its terminal")]

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use jupyter_protocol::client::Observed;
use jupyter_protocol::kernelspec::Environment;
use jupyter_protocol::{ConnectionInfo, Content, Limits, zmq};

/// Limits the wait for the kernel's reply.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The newest connection file of this user.
fn newest() -> Option<PathBuf> {
    let files = std::fs::read_dir(Environment::current().runtime_dir()).ok()?.flatten();
    let kernels = files.filter(|file| file.file_name().to_string_lossy().starts_with("kernel-"));
    let age = |path: &PathBuf| {
        path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    kernels.map(|file| file.path()).max_by_key(age)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args().nth(1).map(PathBuf::from);
    let file = given.or_else(newest).ok_or("no connection file")?;
    println!("watching {}", file.display());
    let client = zmq::connect(&ConnectionInfo::read(&file)?, zmq::Options::default()).await?;
    let mut watch = client.watch();
    // With the key of another kernel, no message is accepted in either direction. A busy kernel replies.
    client.ready(TIMEOUT).await.map_err(|error| {
        format!("{error} (is {} of a kernel that runs, with its key?)", file.display())
    })?;
    while let Some(seen) = watch.next().await {
        let Observed::Message { message, .. } = seen else {
            println!("{seen:?}");
            continue;
        };
        match message.parse_content(&Limits::default()) {
            Content::ExecuteInput(input) => {
                println!("In [{}]: {}", input.execution_count.unwrap_or_default(), input.code);
            }
            Content::Stream(stream) => print!("{}", stream.text),
            Content::ExecuteResult(result) => {
                let count = result.execution_count.unwrap_or_default();
                println!("Out[{count}]: {}", result.data.plain().unwrap_or_default());
            }
            Content::Error(error) => println!("{}: {}", error.ename, error.evalue),
            Content::Status(status) => println!("({})", status.execution_state),
            other => println!("({})", other.msg_type()),
        }
    }
    println!("{}", watch.close_reason().map(ToString::to_string).unwrap_or_default());
    Ok(())
}
