//! The same without an async runtime of your own.
//!
//! ```
//! use code_sandboxes::{Sandbox, blocking};
//!
//! # fn main() -> code_sandboxes::Result<()> {
//! let sandbox = blocking::Sandbox::create(Sandbox::builder().variant("local-eval"))?;
//! sandbox.run_code("x = 40")?;
//! let result = sandbox.wait(|sandbox| sandbox.run_code("x + 2").on_stdout(|m| println!("{}", m.line)))?;
//! assert_eq!(result.text(), Some("42"));
//! # Ok(())
//! # }
//! ```

use std::future::IntoFuture;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use sandbox_core::{
    CommandResult, CommandSpec, Error, ErrorKind, Event, ExecutionResult, FileInfo, OutputMessage,
    Result, RunEvents, Transferred,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::SandboxBuilder;

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// Runs a future to its end on a runtime that all blocking sandboxes share.
fn block_on<F: Future>(future: F) -> Result<F::Output> {
    if Handle::try_current().is_ok() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "block_on",
            "a blocking sandbox cannot be used inside an async runtime",
        )
        .with_hint("use code_sandboxes::Sandbox there, or spawn_blocking"));
    }
    let handle = {
        let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        match &*runtime {
            Some(runtime) => runtime.handle().clone(),
            None => {
                let builder = Builder::new_multi_thread().worker_threads(1).enable_all().build();
                let started = builder.map_err(|error| {
                    Error::new(ErrorKind::ResourceExhausted, "block_on", "no thread for sandboxes")
                        .with_source(error)
                })?;
                runtime.insert(started).handle().clone()
            }
        }
    };
    Ok(handle.block_on(future))
}

/// A handle whose verbs wait. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandbox(crate::Sandbox);

impl Sandbox {
    /// Makes the sandbox that a builder describes, and starts it.
    ///
    /// # Errors
    /// Those of [`SandboxBuilder::create`], and `InvalidArgument` inside an async runtime.
    pub fn create(builder: SandboxBuilder) -> Result<Self> {
        block_on(builder.create())?.map(Self)
    }

    /// Makes the sandbox, lends it to `body`, and terminates it whatever comes of that.
    ///
    /// # Errors
    /// Those of [`Sandbox::create`], of `body`, and of terminating.
    pub fn scope<T, E: From<Error>>(
        builder: SandboxBuilder,
        body: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let sandbox = Self::create(builder)?;
        let outcome = body(&sandbox);
        let ended = sandbox.terminate();
        let value = outcome?;
        ended?;
        Ok(value)
    }

    /// Waits for any verb of the async handle: `sandbox.wait(|s| s.run_code("..").timeout(..))`.
    ///
    /// # Errors
    /// Those of the verb, and `InvalidArgument` inside an async runtime.
    pub fn wait<'a, T, F>(&'a self, verb: impl FnOnce(&'a crate::Sandbox) -> F) -> Result<T>
    where
        F: IntoFuture<Output = Result<T>>,
    {
        block_on(verb(&self.0).into_future())?
    }

    /// Runs code and gives its result.
    ///
    /// # Errors
    /// Only for code that never ran.
    pub fn run_code(&self, code: impl Into<String>) -> Result<ExecutionResult> {
        let code = code.into();
        self.wait(|sandbox| sandbox.run_code(code))
    }

    /// Runs code and gives its events as they come. Dropping the iterator cancels the run.
    ///
    /// # Errors
    /// Only for code that never ran.
    pub fn stream_code(&self, code: impl Into<String>) -> Result<Events> {
        let code = code.into();
        let stream = block_on(async { self.0.run_code(code).stream().await })??;
        Ok(Events(Waiting(Some(stream))))
    }

    /// Runs a command and gives its result.
    ///
    /// # Errors
    /// Only for a command that never ran.
    pub fn run_command(&self, command: impl Into<CommandSpec>) -> Result<CommandResult> {
        let command = command.into();
        self.wait(|sandbox| sandbox.commands().run(command))
    }

    /// The whole content of a file.
    ///
    /// # Errors
    /// Those of [`Files::read`](sandbox_core::Files::read).
    pub fn read_file(&self, path: impl AsRef<Path>) -> Result<Bytes> {
        self.wait(|sandbox| async move { sandbox.files().read(path).await })
    }

    /// Writes a file, whole or not at all.
    ///
    /// # Errors
    /// Those of [`Files::write`](sandbox_core::Files::write).
    pub fn write_file(&self, path: impl AsRef<Path>, content: impl Into<Bytes>) -> Result<()> {
        let content = content.into();
        self.wait(|sandbox| async move { sandbox.files().write(path, content).await })
    }

    /// What is in a directory.
    ///
    /// # Errors
    /// Those of [`Files::list`](sandbox_core::Files::list).
    pub fn list_files(&self, path: impl AsRef<Path>) -> Result<Vec<FileInfo>> {
        self.wait(|sandbox| async move { sandbox.files().list(path).await })
    }

    /// Copies a file or a directory of this computer to `path`, which is its new name.
    ///
    /// # Errors
    /// Those of [`Files::upload`](sandbox_core::Files::upload).
    pub fn upload(&self, local: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Transferred> {
        self.wait(|sandbox| sandbox.files().upload(local, path))
    }

    /// Copies a file or a directory of the sandbox to `local`, which is its new name.
    ///
    /// # Errors
    /// Those of [`Files::download`](sandbox_core::Files::download).
    pub fn download(&self, path: impl AsRef<Path>, local: impl AsRef<Path>) -> Result<Transferred> {
        self.wait(|sandbox| sandbox.files().download(path, local))
    }

    /// The value of a variable, which crosses as JSON.
    ///
    /// # Errors
    /// Those of [`Sandbox::get_variable`](sandbox_core::Sandbox::get_variable).
    pub fn get_variable<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.wait(|sandbox| async move { sandbox.get_variable(name).await })
    }

    /// Sets a variable to a value that crosses as JSON.
    ///
    /// # Errors
    /// Those of [`Sandbox::set_variable`](sandbox_core::Sandbox::set_variable).
    pub fn set_variable(&self, name: &str, value: impl Serialize) -> Result<()> {
        self.wait(|sandbox| async move { sandbox.set_variable(name, value).await })
    }

    /// Ends it for good. Idempotent.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn terminate(&self) -> Result<()> {
        block_on(self.0.terminate())?
    }

    /// The async handle.
    pub fn inner(&self) -> &crate::Sandbox {
        &self.0
    }
}

/// The events of a run, one at a time.
#[derive(Debug)]
pub struct Events(Waiting<RunEvents>);

impl Events {
    /// Gives the output of both streams line by line, as it comes.
    pub fn lines(mut self) -> Lines {
        Lines(Waiting(self.0.0.take().map(RunEvents::lines)))
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.0.next()
    }
}

/// The output of a run, line by line.
#[derive(Debug)]
pub struct Lines(Waiting<sandbox_core::Lines>);

impl Iterator for Lines {
    type Item = OutputMessage;

    fn next(&mut self) -> Option<OutputMessage> {
        self.0.next()
    }
}

/// A stream whose items are waited for.
#[derive(Debug)]
struct Waiting<S: Send>(Option<S>);

impl<S: Stream<Item: Send> + Send + Unpin> Waiting<S> {
    fn next(&mut self) -> Option<S::Item> {
        let stream = self.0.as_mut()?;
        if Handle::try_current().is_err() {
            return block_on(stream.next()).ok().flatten();
        }
        // Inside another runtime nothing may block its thread but a thread of its own.
        thread::scope(|scope| {
            scope.spawn(|| block_on(stream.next()).ok().flatten()).join().ok().flatten()
        })
    }
}

impl<S: Send> Drop for Waiting<S> {
    fn drop(&mut self) {
        // A run is cancelled on the runtime it lives on.
        let Some(stream) = self.0.take() else { return };
        thread::scope(|scope| scope.spawn(|| block_on(async { drop(stream) })).join()).ok();
    }
}
