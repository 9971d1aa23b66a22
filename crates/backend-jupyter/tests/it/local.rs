//! Kernels of this host that the suite does not have.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

use backend_jupyter::JupyterBackend;
use sandbox_core::{ErrorKind, IsolationMode, Sandbox};

use super::support::server::write_kernel;
use super::support::{config, interpreter};

#[tokio::test]
async fn a_kernel_of_another_language_runs_in_a_cell() {
    if interpreter().is_none() {
        return;
    }
    let backend = Arc::new(JupyterBackend::new(config()));
    let builder = Sandbox::builder(backend).provider_option("kernel", "bash");
    let sandbox = builder.create().await.unwrap();
    let result = sandbox.run_code("y=5; echo $((y * 2)); pwd").await.unwrap();
    assert_eq!(result.stdout(), "10\n/workspace");
    sandbox.run_code("echo kept > file").await.unwrap();
    assert_eq!(sandbox.files().read_text("file").await.unwrap(), "kept\n");
    let result = sandbox.run_code("sleep 60").timeout(Duration::from_millis(500)).await.unwrap();
    assert!(result.failure.is_some(), "{result:?}");
    let error = sandbox.get_variable("y").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_kernel_that_exits_at_once_says_why() {
    let Some(python) = interpreter() else { return };
    // Looks like an environment of its own, with one kernel that does not come up.
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::create_dir_all(folder.path().join("lib/python3.11/site-packages")).unwrap();
    let settings = python.parent().unwrap().with_file_name("pyvenv.cfg");
    fs::copy(settings, folder.path().join("pyvenv.cfg")).unwrap();
    let own = folder.path().join("bin/python");
    symlink(fs::canonicalize(&python).unwrap(), &own).unwrap();
    write_kernel(&folder.path().join("share/jupyter"), "broken", "echo the reason >&2; exit 3");
    for isolation in [IsolationMode::Strict, IsolationMode::Off] {
        let mut config = config();
        config.python = Some(own.clone());
        let builder = Sandbox::builder(Arc::new(JupyterBackend::new(config)));
        let created = builder.isolation(isolation).provider_option("kernel", "broken").create();
        let error = created.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("status 3"), "{error}");
        assert!(error.hint().unwrap().contains("the reason"), "{error:?}");
    }
}
