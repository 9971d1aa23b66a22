//! Output while the code runs: by callbacks, or as a stream of events.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use code_sandboxes::{EventKind, Sandbox};
use futures_util::StreamExt as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let sandbox = Sandbox::builder().create().await?;

    let code = "import sys, time\nfor i in range(3):\n    print(f'Step {i}')\n    time.sleep(0.05)\nprint('done', file=sys.stderr)";
    sandbox
        .run_code(code)
        .on_stdout(|message| println!("[stdout] {}", message.line))
        .on_stderr(|message| println!("[stderr] {}", message.line))
        .await?;

    let mut events = sandbox.run_code("print('hello')\n40 + 2").stream().await?;
    while let Some(event) = events.next().await {
        match event.kind {
            EventKind::Output { data, .. } => print!("{}", String::from_utf8_lossy(&data)),
            EventKind::Display { item, .. } => println!("value {item}"),
            EventKind::Finished(outcome) => println!("finished, state {:?}", outcome.state),
            _ => {}
        }
    }
    sandbox.terminate().await
}
