//! Pauses a container and commits it to an image, one at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bollard::Docker;
use sandbox_agent_client::Pauser;
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_engine::background;
use sandbox_shell::ShellHost;
use tokio::sync::Mutex;

use crate::commit::CommittedImage;

/// Stops the processes of root but those of this script, until a round finds no running one, and prints each with its start.
const PAUSE_ROOT: &str = include_str!("pause_root.sh");

/// Continues the processes, each given as its number and its start.
const RESUME_ROOT: &str = r#"for place; do
    { read -r line <"/proc/${place%:*}/stat"; } 2>/dev/null || continue
    since=${place#*:} number=${place%:*}
    set -- ${line##*) }
    [ "${20}" = "$since" ] && kill -CONT "$number" 2>/dev/null
done
exit 0"#;

/// Limits the commit of the changed files of one container.
const COMMIT_TIMEOUT: Duration = Duration::from_mins(15);

/// Pauses and resumes everything that runs in a container.
#[derive(Debug)]
pub(crate) struct ContainerPauser {
    docker: Docker,
    container: String,
    agent: Pauser,
    /// The shell of root, whose processes the agent cannot pause, where commands can run as root.
    root: Option<Arc<dyn ShellHost>>,
    /// A command has run as root.
    used_root: AtomicBool,
    /// Processes of root that are paused.
    paused_root: std::sync::Mutex<Vec<String>>,
    /// Serializes pause, resume and commit, including cancelled ones.
    turn: Arc<Mutex<()>>,
}

impl ContainerPauser {
    pub(crate) fn new(
        docker: Docker,
        container: String,
        agent: Pauser,
        root: Option<Arc<dyn ShellHost>>,
    ) -> Self {
        let (used_root, paused_root, turn) = Default::default();
        Self { docker, container, agent, root, used_root, paused_root, turn }
    }

    /// Pauses all processes but the agent. The engine is not asked for that: it would freeze the agent too, which then could
    /// not see that its owner is gone.
    ///
    /// # Cancellation
    /// The processes may be paused all the same.
    pub(crate) async fn pause(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.pause_root().await?;
        let paused = self.agent.pause().await;
        if paused.is_err() {
            self.resume_root().await?;
        }
        paused
    }

    /// Records that there may be processes of root.
    pub(crate) fn expect_root(&self) {
        self.used_root.store(true, Ordering::Relaxed);
    }

    /// Pauses the processes of root.
    async fn pause_root(&self) -> Result<()> {
        let Some(root) = self.root.as_ref().filter(|_| self.used_root.load(Ordering::Relaxed))
        else {
            return Ok(());
        };
        let output = root.run(PAUSE_ROOT, &[]).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let stopped = text.split_whitespace().map(str::to_owned);
        self.paused_root.lock().unwrap_or_else(PoisonError::into_inner).extend(stopped);
        if output.status == 0 {
            return Ok(());
        }
        self.resume_root().await?;
        Err(Error::new(ErrorKind::Unavailable, "pause", "processes of root could not be paused"))
    }

    /// Resumes the processes of root that were paused.
    async fn resume_root(&self) -> Result<()> {
        let paused = self.paused_root.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(root) = self.root.as_ref().filter(|_| !paused.is_empty()) {
            let paused: Vec<&str> = paused.iter().map(String::as_str).collect();
            root.run(RESUME_ROOT, &paused).await?;
            self.paused_root.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        Ok(())
    }

    /// Resumes what was paused. Does nothing to a container that runs.
    pub(crate) async fn resume(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.agent.resume().await?;
        self.resume_root().await
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
