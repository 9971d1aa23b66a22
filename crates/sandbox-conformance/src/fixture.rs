//! What a case gets: a backend, and sandboxes that go away with the case.

use std::sync::{Arc, Mutex, PoisonError};

use sandbox_core::{Backend, ByteSize, ErrorKind, Sandbox, SandboxBuilder, SingleBackend};

use crate::case::{Checked, Failure};
use crate::hostile::Canaries;
use crate::support::{SLACK, WAIT_TIMEOUT, within};
use crate::target::Target;

/// Makes the sandboxes of one case and ends them afterwards. Clones share the list.
#[derive(Clone)]
pub(crate) struct Fixture {
    target: Arc<Target>,
    backend: Arc<dyn Backend>,
    made: Arc<Mutex<Vec<Sandbox>>>,
    canaries: Option<Arc<Canaries>>,
}

impl Fixture {
    pub(crate) fn new(target: Arc<Target>, backend: Arc<dyn Backend>) -> Self {
        Self { target, backend, made: Arc::default(), canaries: None }
    }

    /// The same with canaries on the host.
    pub(crate) fn guarded(self, canaries: Option<Arc<Canaries>>) -> Self {
        Self { canaries, ..self }
    }

    /// What is on the host and must not be touched.
    pub(crate) fn canaries(&self) -> Checked<&Canaries> {
        self.canaries.as_deref().ok_or_else(|| Failure::new("there are no canaries"))
    }

    /// Whether nothing on the host was touched.
    pub(crate) fn is_untouched(&self) -> Checked {
        self.canaries.as_deref().map_or(Ok(()), Canaries::check)
    }

    /// Requires that each sandbox of the case either works, or says that it has ended.
    pub(crate) async fn is_truthful(&self) -> Checked {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for sandbox in made {
            match within(SLACK, sandbox.run_code("1+1").timeout(WAIT_TIMEOUT)).await? {
                Ok(result) if result.text() == Some("2") => {}
                Err(error) if error.kind() == ErrorKind::Terminated => {}
                other => return Err(Failure::new(format!("afterwards: {other:?}"))),
            }
        }
        Ok(())
    }

    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(crate) fn shared_target(&self) -> Arc<Target> {
        Arc::clone(&self.target)
    }

    /// A builder with the settings of the target. What it makes is the case's to end.
    pub(crate) fn builder(&self) -> SandboxBuilder<SingleBackend> {
        let builder = Sandbox::builder(self.backend()).isolation(self.target.isolation);
        (self.target.configure)(builder)
    }

    /// A sandbox with the settings of the target.
    pub(crate) async fn sandbox(&self) -> Checked<Sandbox> {
        self.create(|builder| builder).await
    }

    /// A sandbox with more settings.
    pub(crate) async fn create(
        &self,
        configure: impl FnOnce(SandboxBuilder<SingleBackend>) -> SandboxBuilder<SingleBackend>,
    ) -> Checked<Sandbox> {
        let sandbox = configure(self.builder()).create().await?;
        self.keep(&sandbox);
        if let Some(prepare) = &self.target.prepare {
            prepare(sandbox.clone()).await?;
        }
        Ok(sandbox)
    }

    /// A sandbox whose working directory takes that much and no more.
    pub(crate) async fn with_room(&self, room: ByteSize) -> Checked<Sandbox> {
        let (part, of) = self.target.shared_disk;
        self.create(|b| b.disk(ByteSize::bytes(room.as_u64() * of / part))).await
    }

    /// Ends that sandbox with the case.
    pub(crate) fn keep(&self, sandbox: &Sandbox) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(sandbox.clone());
    }

    /// Ends everything.
    pub(crate) async fn clean_up(&self) -> Checked {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for sandbox in made {
            sandbox.kill().await?;
        }
        Ok(())
    }
}
