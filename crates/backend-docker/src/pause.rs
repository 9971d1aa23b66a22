//! Pauses a container and commits it to an image, one at a time.

use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use sandbox_agent_client::Pauser;
use sandbox_core::Result;
use sandbox_engine::background;
use tokio::sync::Mutex;

use crate::commit::CommittedImage;

/// Limits the commit of the changed files of one container.
const COMMIT_TIMEOUT: Duration = Duration::from_mins(15);

/// Pauses and resumes everything that runs in a container.
#[derive(Debug)]
pub(crate) struct ContainerPauser {
    docker: Docker,
    container: String,
    agent: Pauser,
    /// Serializes pause, resume and commit, including cancelled ones.
    turn: Arc<Mutex<()>>,
}

impl ContainerPauser {
    pub(crate) fn new(docker: Docker, container: String, agent: Pauser) -> Self {
        Self { docker, container, agent, turn: Arc::default() }
    }

    /// Pauses all processes but the agent. The engine is not asked for that: it would freeze the agent too, which then could
    /// not see that its owner is gone.
    ///
    /// # Cancellation
    /// The processes may be paused all the same.
    pub(crate) async fn pause(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.agent.pause().await
    }

    /// Resumes what was paused. Does nothing to a container that runs.
    pub(crate) async fn resume(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.agent.resume().await
    }

    /// Commits the changed files to an image, for a snapshot of that store. The engine pauses the container meanwhile.
    ///
    /// # Cancellation
    /// The engine finishes the commit, and then the image is removed.
    pub(crate) async fn commit(&self, snapshot: &str, store: String) -> Result<CommittedImage> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let paused = self.agent.mark_paused();
        // The engine answers when it is done.
        let docker = self.docker.clone().with_timeout(COMMIT_TIMEOUT);
        let commit =
            CommittedImage::create(docker, self.container.clone(), snapshot.to_owned(), store);
        background(async move {
            let _guards = (turn, paused);
            commit.await
        })
        .await?
    }

    /// Returns true while one of the operations above is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.turn.try_lock().is_err()
    }
}
