//! The behaviour suite over `local-eval` on the other side of a socket pair.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_conformance::Target;
use sandbox_core::Backend;
use tokio::net::UnixStream;
use tokio::runtime::Handle;

/// The backend at the end of a connection to a server in this process.
fn through_a_socket() -> Arc<dyn Backend> {
    let (near, far) = UnixStream::pair().expect("a socket pair");
    let runtime = Handle::current();
    let backend = Arc::new(EvalBackend::default());
    runtime.spawn(sandbox_remote::serve(backend, far));
    let connected = std::thread::spawn(move || runtime.block_on(sandbox_remote::connect(near)));
    Arc::new(connected.join().expect("no panic").expect("a connection"))
}

fn main() -> ExitCode {
    let target = Target::new("local-eval-remote", through_a_socket);
    sandbox_conformance::main(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}
