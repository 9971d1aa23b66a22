//! What code in a sandbox cannot do, and how to ask for something else.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use code_sandboxes::{ErrorKind, GpuType, IsolationMode, NetworkPolicy, Sandbox};

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let sandbox = Sandbox::builder().network(NetworkPolicy::none()).create().await?;
    for code in [
        "open('/etc/shadow').read()",
        "open('/usr/bin/python3', 'w')",
        "import socket; socket.create_connection(('198.51.100.1', 80))",
        "import os; sorted(os.environ)",
        "import os; [pid for pid in os.listdir('/proc') if pid.isdigit()]",
    ] {
        let result = sandbox.run_code(code).await?;
        match (&result.code_error, result.text()) {
            (Some(error), _) => println!("{code}\n    {error}"),
            (None, text) => println!("{code}\n    {}", text.unwrap_or("none")),
        }
    }
    let info = sandbox.info().isolation.unwrap_or_default();
    println!("layers: {}", info.layers.join(", "));
    sandbox.terminate().await?;

    // What cannot be enforced is refused before anything starts.
    for refused in [
        Sandbox::builder()
            .isolation(IsolationMode::Off)
            .network(NetworkPolicy::none())
            .create()
            .await,
        Sandbox::builder().gpu(GpuType::T4).create().await,
    ] {
        let error = refused.expect_err("local-eval has neither");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        println!("refused: {error}");
    }

    // Without isolation the code has the rights of this process. It has to be asked for by name.
    let open = Sandbox::builder().isolation(IsolationMode::Off).create().await?;
    println!("off: {:?}", open.info().isolation.map(|i| i.boundary));
    open.terminate().await
}
