//! Kernels that are forked from a warm interpreter, and when they are not.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend_jupyter::JupyterBackend;
use sandbox_core::{Fixed, Sandbox, SandboxBuilder};
use serde_json::Value;

use super::support::{config, interpreter};

const SURROUNDINGS: &str = include_str!("surroundings.py");

fn builder() -> Option<SandboxBuilder<Fixed>> {
    interpreter()?;
    Some(Sandbox::builder(Arc::new(JupyterBackend::new(config()))))
}

/// The parent of a forked kernel is the warm interpreter, which is outside of the cell: nobody there has a number for it.
async fn is_forked(sandbox: &Sandbox) -> bool {
    let parent = sandbox.run_code("import os; os.getppid()").await.unwrap();
    match parent.text() {
        Some("0") => true,
        Some("1") => false,
        _ => panic!("{parent:?}"),
    }
}

async fn surroundings(sandbox: &Sandbox) -> BTreeMap<String, Value> {
    let found = sandbox.run_code(SURROUNDINGS).await.unwrap();
    // It interrupts itself.
    assert!(found.code_error.is_none(), "{:?}", found.code_error);
    serde_json::from_str(&found.stdout()).unwrap()
}

#[tokio::test]
async fn a_forked_kernel_is_as_a_fresh_one() {
    let Some(forked) = builder() else { return };
    let forked = forked.create().await.unwrap();
    let fresh = builder().unwrap().provider_option("warm", false).create().await.unwrap();
    assert!(is_forked(&forked).await && !is_forked(&fresh).await);
    let (forked, fresh) = (surroundings(&forked).await, surroundings(&fresh).await);
    let different: Vec<_> = fresh
        .iter()
        .filter(|(name, value)| forked.get(*name) != Some(value))
        .map(|(name, value)| format!("{name}:\n  forked {}\n  fresh  {value}", forked[name]))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}
