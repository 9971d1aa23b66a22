//! Bytecode of the agent, so that a container has nothing to compile.
//!
//! An interpreter of this host with the same bytecode format as the one of the image compiles it. Bytecode never comes from a
//! container: code in one could then determine what other containers run. Without such an interpreter here, containers get the
//! source text.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandbox_engine::background;
use sandbox_engine::programs::on_path;
use sandbox_python::agent::{PycMagic, agent, byte_code_id, compiler};
use sandbox_python::cache;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// Minor versions of interpreters that are searched for by name, besides `python3`.
const MIN_MINOR: u32 = 9;
const MAX_MINOR: u32 = 16;

/// Limits one compilation.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(30);

/// Compiled agents by format, shared by all sandboxes of a backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentBytecode {
    /// `None`: the agent is being compiled, or no interpreter here can compile it.
    known: Arc<Mutex<HashMap<PycMagic, Option<Bytes>>>>,
}

impl AgentBytecode {
    /// Returns the agent in that format if it is cached. Otherwise starts to compile it, for later containers.
    pub(crate) fn get(&self, magic: PycMagic) -> Option<Bytes> {
        if let Some(known) = self.known().get(&magic) {
            return known.clone();
        }
        let cached = cache::read(&file_name(magic)).map(Bytes::from);
        self.known().insert(magic, cached.clone());
        if cached.is_none() {
            let known = Arc::clone(&self.known);
            // Continues when the runtime of this call ends.
            tokio::spawn(background(async move {
                let Some(compiled) = compile_with_any(magic).await else { return };
                cache::write(&file_name(magic), &compiled);
                lock(&known).insert(magic, Some(compiled));
            }));
        }
        cached
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PycMagic, Option<Bytes>>> {
        lock(&self.known)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file_name(magic: PycMagic) -> String {
    format!("agent-in-boxes-{:016x}.bin", byte_code_id(magic))
}

/// Compiles the agent with the first interpreter here that has that format.
async fn compile_with_any(magic: PycMagic) -> Option<Bytes> {
    let numbered = (MIN_MINOR..=MAX_MINOR).rev().map(|minor| format!("python3.{minor}"));
    for name in std::iter::once("python3".to_owned()).chain(numbered) {
        let Some(python) = on_path(&name) else { continue };
        let compiled = timeout(COMPILE_TIMEOUT, compile(&python, magic)).await;
        if let Ok(Ok(Some(compiled))) = compiled {
            return Some(compiled);
        }
    }
    None
}

/// Compiles the agent. Returns `None` for an interpreter with another format.
async fn compile(python: &Path, magic: PycMagic) -> std::io::Result<Option<Bytes>> {
    let mut compiler = Command::new(python)
        .args(compiler(magic))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let stdin = compiler.stdin.take();
    let write = async move {
        match stdin {
            // An interpreter with another format ends without reading it.
            Some(mut stdin) => stdin.write_all(agent().as_bytes()).await.is_ok(),
            None => false,
        }
    };
    let (is_written, output) = tokio::join!(write, compiler.wait_with_output());
    let output = output?;
    let is_complete = is_written && output.status.success();
    Ok(is_complete.then(|| Bytes::from(output.stdout)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn magic_of(python: &str) -> PycMagic {
        let code = "import importlib.util as u; print(u.MAGIC_NUMBER.hex())";
        let output = Command::new(python).args(["-I", "-c", code]).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    #[tokio::test]
    async fn an_interpreter_compiles_only_for_its_own_format() {
        let python = on_path("python3").unwrap();
        let own = magic_of("python3").await;
        let compiled = compile(&python, own).await.unwrap().unwrap();
        assert!(compiled.len() > agent().len() / 2, "{} bytes", compiled.len());
        let other: PycMagic = "00000d0a".parse().unwrap();
        assert_eq!(compile(&python, other).await.unwrap(), None);
        assert_eq!(compile_with_any(other).await, None);
    }
}
