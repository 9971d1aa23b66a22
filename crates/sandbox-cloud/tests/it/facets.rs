//! Wrappers of a sandbox, over a backend with nothing in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use sandbox_cloud::{DeferredFacets, DeferredPart, RemoteLifetime, check_lifetime};
use sandbox_core::{
    CallContext, Capabilities, CodeOps, Command, CommandInfo, CommandOps, Error, ErrorKind,
    FailureKind, FileOps, Instance, Life, LogStream, Metrics, PackageOps, PortOps, Result,
    SandboxInfo, SandboxStatus, SnapshotOps, StartCommand, Tags,
};

use crate::lifetime::{Cloud, Sandbox};

/// A sandbox whose only verbs are ends and the list of commands, which loses its connection when it is told to.
#[derive(Debug, Default)]
struct Commands {
    is_lost: AtomicBool,
    ends: AtomicU32,
}

fn unsupported<T>(operation: &'static str) -> Result<T> {
    Err(Error::unsupported(operation, "there is nothing"))
}

impl Instance for Commands {
    fn info(&self) -> SandboxInfo {
        unreachable!("no test asks")
    }

    fn status(&self) -> SandboxStatus {
        SandboxStatus::Running
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        unsupported("run_code")
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        Ok(self)
    }

    fn files(&self) -> Result<&dyn FileOps> {
        unsupported("read_file")
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        unsupported("install_packages")
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        unsupported("create_snapshot")
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        unsupported("expose_port")
    }
}

#[async_trait]
impl Life for Commands {
    async fn terminate(&self, _: &CallContext) -> Result<()> {
        self.ends.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn kill(&self, _: &CallContext) -> Result<()> {
        unsupported("kill")
    }

    async fn set_tags(&self, _: &CallContext, _: Tags) -> Result<()> {
        unsupported("set_tags")
    }

    async fn set_lifetime(&self, _: &CallContext, _: std::time::Duration) -> Result<()> {
        unsupported("set_lifetime")
    }

    async fn pause(&self, _: &CallContext) -> Result<()> {
        unsupported("pause")
    }

    async fn resume(&self, _: &CallContext) -> Result<()> {
        unsupported("resume")
    }

    async fn reset(&self, _: &CallContext) -> Result<()> {
        unsupported("reset")
    }

    async fn fork(&self, _: &CallContext) -> Result<Arc<dyn Instance>> {
        unsupported("fork")
    }

    async fn metrics(&self, _: &CallContext) -> Result<Metrics> {
        unsupported("metrics")
    }

    async fn logs(&self, _: &CallContext, _: bool) -> Result<LogStream> {
        unsupported("logs")
    }
}

#[async_trait]
impl CommandOps for Commands {
    async fn start_command(&self, _: &CallContext, _: StartCommand) -> Result<Command> {
        unsupported("start_command")
    }

    async fn list_commands(&self, _: &CallContext) -> Result<Vec<CommandInfo>> {
        if self.is_lost.load(Ordering::SeqCst) {
            let message = "the connection broke";
            return Err(Error::new(ErrorKind::ConnectionLost, "list_commands", message));
        }
        Ok(Vec::new())
    }

    async fn connect_command(&self, _: &CallContext, _: &str) -> Result<Command> {
        unsupported("connect_command")
    }
}

#[tokio::test]
async fn the_end_of_a_sandbox_is_the_error_of_its_verbs() {
    let cloud = Arc::<Cloud>::default();
    let lifetime = Arc::new(RemoteLifetime::new(Sandbox(Arc::clone(&cloud)), false));
    let commands = Arc::<Commands>::default();
    let sandbox = check_lifetime(Arc::clone(&commands) as _, Arc::clone(&lifetime));
    let call = CallContext::new();
    sandbox.commands().unwrap().list_commands(&call).await.unwrap();
    assert!(sandbox.files().is_err(), "a facet that is missing stays missing");

    commands.is_lost.store(true, Ordering::SeqCst);
    let error = sandbox.commands().unwrap().list_commands(&call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost, "the sandbox is still there");
    cloud.end();
    let error = sandbox.commands().unwrap().list_commands(&call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated, "{error}");

    // After that no verb reaches the sandbox, but for the ends, which find that it has ended.
    commands.is_lost.store(false, Ordering::SeqCst);
    let error = sandbox.commands().unwrap().list_commands(&call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated);
    sandbox.life().terminate(&call).await.unwrap();
    assert_eq!(commands.ends.load(Ordering::SeqCst), 1);
    assert_eq!(lifetime.end_reason().get(), Some(FailureKind::Terminated));
}

/// A part that fails to start the first time.
#[derive(Debug, Default)]
struct Part {
    starts: AtomicU32,
    commands: Commands,
}

#[async_trait]
impl DeferredPart for Part {
    async fn part(&self) -> Result<&dyn Instance> {
        match self.starts.fetch_add(1, Ordering::SeqCst) {
            0 => Err(Error::new(ErrorKind::Unavailable, "start", "not yet")),
            _ => Ok(&self.commands),
        }
    }
}

#[tokio::test]
async fn a_part_starts_with_the_first_verb_that_needs_it() {
    let facets = DeferredFacets(Part::default());
    let call = CallContext::new();
    assert_eq!(facets.0.starts.load(Ordering::SeqCst), 0);
    let error = facets.list_commands(&call).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    facets.list_commands(&call).await.unwrap();
    let error = facets.stat_file(&call, "/").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "the part has no files");
}
