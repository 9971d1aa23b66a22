//! The agent as byte code, so that a container has nothing to compile.
//!
//! It is made here, by an interpreter of this host that takes the same byte code as the one of the image. None is ever
//! taken from a container: code in one could make what others run. Where no interpreter here is of that kind, containers get
//! the text.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandbox_engine::programs::on_path;
use sandbox_engine::{background, cache};
use sandbox_python::agent::{PycMagic, agent, byte_code_id, compiler};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// Minor versions of interpreters that are looked for by name, besides `python3`.
const MIN_MINOR: u32 = 9;
const MAX_MINOR: u32 = 16;

/// How long one of them may take.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(30);

/// What is known of it, shared by all sandboxes of a backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentBytecode {
    /// `None`: it is being made, or there is nobody here who could make it.
    known: Arc<Mutex<HashMap<PycMagic, Option<Bytes>>>>,
}

impl AgentBytecode {
    /// That for interpreters of that kind, if it is there. Otherwise it is made, for the ones to come.
    pub(crate) fn get(&self, magic: PycMagic) -> Option<Bytes> {
        if let Some(known) = self.known().get(&magic) {
            return known.clone();
        }
        let cached = cache::read(&file_name(magic)).map(Bytes::from);
        self.known().insert(magic, cached.clone());
        if cached.is_none() {
            let known = Arc::clone(&self.known);
            // It goes on when the runtime of this one is gone.
            tokio::spawn(background(async move {
                let Some(made) = make(magic).await else { return };
                cache::write(&file_name(magic), &made);
                lock(&known).insert(magic, Some(made));
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

/// By the first interpreter here that is of that kind.
async fn make(magic: PycMagic) -> Option<Bytes> {
    let numbered = (MIN_MINOR..=MAX_MINOR).rev().map(|minor| format!("python3.{minor}"));
    for name in std::iter::once("python3".to_owned()).chain(numbered) {
        let Some(python) = on_path(&name) else { continue };
        let made = timeout(COMPILE_TIMEOUT, compile(&python, magic)).await;
        if let Ok(Ok(Some(made))) = made {
            return Some(made);
        }
    }
    None
}

async fn compile(python: &Path, magic: PycMagic) -> std::io::Result<Option<Bytes>> {
    let mut compiler = Command::new(python)
        .args(compiler(magic))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let stdin = compiler.stdin.take();
    let fed = async move {
        match stdin {
            // One of another kind ends without reading it.
            Some(mut stdin) => stdin.write_all(agent().as_bytes()).await.is_ok(),
            None => false,
        }
    };
    let (is_fed, output) = tokio::join!(fed, compiler.wait_with_output());
    let output = output?;
    let is_whole = is_fed && output.status.success();
    Ok(is_whole.then(|| Bytes::from(output.stdout)))
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
    async fn an_interpreter_compiles_for_its_own_kind_and_for_no_other() {
        let python = on_path("python3").unwrap();
        let own = magic_of("python3").await;
        let made = compile(&python, own).await.unwrap().unwrap();
        assert!(made.len() > agent().len() / 2, "{} bytes", made.len());
        let other: PycMagic = "00000d0a".parse().unwrap();
        assert_eq!(compile(&python, other).await.unwrap(), None);
        assert_eq!(make(other).await, None);
    }
}
