//! Volumes of the organization, by name.

use std::time::Duration;

use sandbox_cloud::Backoff;
use sandbox_core::{CallContext, Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::api::Api;

/// Time for a volume that is being made.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Replaces the name of each volume by its id. A volume that does not exist is made.
///
/// # Errors
/// `InvalidArgument` for an entry with both; `Unavailable` for a volume that cannot be made.
pub(crate) async fn resolve(
    api: &Api,
    call: &CallContext,
    volumes: Vec<Value>,
) -> Result<Vec<Value>> {
    let mut resolved = Vec::new();
    for mut volume in volumes {
        if let Some(name) = volume.get("name").cloned() {
            let name = name.as_str().filter(|name| !name.is_empty());
            let (Some(name), true) = (name, volume.get("volumeId").is_none()) else {
                return Err(Error::invalid("volumes", "have either a `name` or a `volumeId`"));
            };
            let id = find_or_make(api, call, name).await?;
            if let Some(fields) = volume.as_object_mut() {
                fields.remove("name");
                fields.insert("volumeId".to_owned(), json!(id));
            }
        }
        resolved.push(volume);
    }
    Ok(resolved)
}

async fn find_or_make(api: &Api, call: &CallContext, name: &str) -> Result<String> {
    let mut found = match api.volume(call, name).await? {
        Some(found) => found,
        None => match api.create_volume(call, name).await {
            Ok(made) => made,
            // Another process may have made it in this moment, or the answer was lost.
            Err(error) => api.volume(call, name).await?.ok_or(error)?,
        },
    };
    let mut backoff = Backoff::new(READY_TIMEOUT);
    loop {
        match found.state.as_str() {
            "error" | "deleting" | "pending_delete" | "deleted" => {
                let why = found.error_reason.unwrap_or(found.state);
                let message = format!("the volume {name:?} cannot be used: {why}");
                return Err(Error::new(ErrorKind::Unavailable, "create", message));
            }
            "creating" | "pending_create" => {}
            _ => return Ok(found.id),
        }
        if !backoff.wait(call).await {
            let message = format!("the volume {name:?} was not ready in time");
            return Err(Error::new(ErrorKind::Timeout, "create", message));
        }
        found = api.volume(call, name).await?.ok_or_else(|| {
            let message = format!("the volume {name:?} vanished while it was made");
            Error::new(ErrorKind::NotFound, "create", message)
        })?;
    }
}
