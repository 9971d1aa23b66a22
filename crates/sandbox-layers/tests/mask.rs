//! Masked secrets around real cells.

use std::sync::Arc;

use backend_eval::EvalBackend;
use futures_util::StreamExt as _;
use sandbox_core::{Layer, Sandbox};
use sandbox_layers::MaskLayer;

#[tokio::test]
async fn values_of_secret_variables_do_not_get_out() {
    let backend = MaskLayer.layer(Arc::new(EvalBackend::default()));
    let builder = Sandbox::builder(backend).secret("PIN", "s3cr3t").env("API_KEY", "hunter2");
    let sandbox = builder.env("HOME_TOWN", "Oslo").create().await.unwrap();
    let code =
        "import os, sys\nfor name in ('PIN', 'API_KEY', 'HOME_TOWN'): print(os.environ[name])";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!(result.stdout_trimmed(), "***\n***\nOslo");
    let code =
        "sys.stdout.write('s3c'); sys.stdout.flush(); sys.stdout.write('r3t'); os.environ['PIN']";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!((result.stdout_trimmed().as_str(), result.text()), ("***", Some("'***'")));
    let result = sandbox.run_code("raise ValueError(os.environ['API_KEY'])").await.unwrap();
    let error = result.code_error.unwrap();
    assert_eq!(error.value, "***");
    assert!(!error.traceback.contains("hunter2"), "{}", error.traceback);
    let command = sandbox.commands().run("echo $PIN$API_KEY $MY_TOKEN >&2; echo end");
    let result = command.env("MY_TOKEN", "abcdefg").await.unwrap();
    assert_eq!((result.stderr.as_str(), result.stdout.as_str()), ("****** ***\n", "end\n"));
    // Events of a stream are numbered without gaps.
    let events = sandbox.run_code("print('s3cr3', end='')").stream().await.unwrap();
    let seqs: Vec<_> = events.map(|event| event.seq).collect().await;
    assert_eq!(seqs, (0..seqs.len() as u64).collect::<Vec<_>>());
    sandbox.terminate().await.unwrap();
}
