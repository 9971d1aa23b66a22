//! From the request of a user to a container that answers.

use std::sync::Arc;

use sandbox_cloud::{CreateGuard, CreateLocks, RemoteLifetime};
use sandbox_core::{Error, ErrorKind, Result};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::client_factory::ApiFactory;
use crate::error::LEFT_BEHIND;
use crate::records::SandboxRecord;
use crate::remote::{Handle, RemoteSandbox};
use crate::snapshots;

/// The directory that the bridge takes files for, and that programs start in by default.
pub(crate) const WORKSPACE: &str = "/workspace";

/// A create whose id is known.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) id: String,
    pub(crate) record: SandboxRecord,
    /// The sandbox ends with its handle.
    pub(crate) is_owned: bool,
    pub(crate) mounts: Vec<Value>,
    /// The id of the snapshot that it starts with.
    pub(crate) snapshot: Option<String>,
}

/// Returns the id that a key stands for, in letters and digits of the bridge's ids.
pub(crate) fn id_of_key(key: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = Sha256::digest(key);
    digest.iter().take(26).map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect()
}

/// Starts the container of an id and prepares it. Dropping the future leaves none, and the locks are held until then.
///
/// # Errors
/// What kept the container from starting; it is deleted then.
pub(crate) async fn create(
    factory: Arc<ApiFactory>,
    plan: Plan,
    locks: CreateLocks,
) -> Result<Arc<Handle>> {
    let work = move |mut cancellation: sandbox_cloud::Cancellation| async move {
        let Plan { id, record, is_owned, mounts, snapshot } = plan;
        let remote = RemoteSandbox::new(Arc::clone(&factory), &id, record)?;
        let handle = Arc::new(RemoteLifetime::new(remote, is_owned));
        let prepared = cancellation.guard(async {
            handle.programs.prepare("create").await?;
            for mount in &mounts {
                handle.programs.mount(mount.clone()).await?;
            }
            if let Some(snapshot) = &snapshot {
                snapshots::unpack(&factory.config, &handle.programs, snapshot).await?;
            }
            Ok(())
        });
        match prepared.await {
            Ok(()) => Ok(handle),
            Err(error) => Err(handle.discard(error, LEFT_BEHIND).await),
        }
    };
    CreateGuard::start(work, |handle| Box::pin(discard(handle)), locks).finish().await
}

async fn discard(handle: Arc<Handle>) {
    let error = Error::new(ErrorKind::Cancelled, "create", "the caller of the create is gone");
    handle.discard(error, LEFT_BEHIND).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_for_ids_of_the_bridge() {
        let id = id_of_key("tags:{}");
        assert_eq!((id.len(), id_of_key("tags:{}")), (26, id.clone()));
        assert!(id.chars().all(|c| c.is_ascii_lowercase() || ('2'..='7').contains(&c)), "{id}");
        assert_ne!(id, id_of_key("other"));
    }
}
