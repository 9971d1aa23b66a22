//! Volumes: folders of this host that are shown in every sandbox that names them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use chrono::Utc;
use sandbox_core::random_hex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::ORGANIZATION;
use super::api::error;
use super::sandboxes::Registry;

type Shared = State<Arc<Registry>>;

/// The volumes of a server, by id.
#[derive(Debug, Default)]
pub(crate) struct Volumes(Mutex<BTreeMap<String, Volume>>);

#[derive(Debug)]
struct Volume {
    name: String,
    folder: TempDir,
}

impl Volumes {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Volume>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the folder of a volume.
    pub(crate) fn find(&self, id: &str) -> Option<PathBuf> {
        self.all().get(id).map(|volume| volume.folder.path().to_owned())
    }

    fn id_of(&self, name: &str) -> Option<String> {
        let all = self.all();
        all.iter().find(|(_, volume)| volume.name == name).map(|(id, _)| id.clone())
    }

    fn object(&self, id: &str) -> Response {
        match self.all().get(id) {
            Some(volume) => Json(object(id, volume)).into_response(),
            None => error(404, &format!("Volume {id} not found")),
        }
    }
}

fn object(id: &str, volume: &Volume) -> Value {
    let now = Utc::now().to_rfc3339();
    json!({
        "id": id, "name": volume.name, "organizationId": ORGANIZATION, "state": "ready", "createdAt": now,
        "updatedAt": now, "lastUsedAt": null, "errorReason": null,
    })
}

pub(super) async fn list(State(registry): Shared) -> Response {
    let all = registry.volumes.all();
    Json(all.iter().map(|(id, volume)| object(id, volume)).collect::<Vec<_>>()).into_response()
}

pub(super) async fn create(State(registry): Shared, Json(body): Json<Value>) -> Response {
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() {
        return error(400, "name should not be empty");
    }
    if registry.volumes.id_of(&name).is_some() {
        return error(409, "Volume with that name already exists");
    }
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(failed) => return error(500, &failed.to_string()),
    };
    let id = format!("vol-{}", random_hex(8));
    registry.volumes.all().insert(id.clone(), Volume { name, folder });
    registry.volumes.object(&id)
}

pub(super) async fn by_name(State(registry): Shared, Path(name): Path<String>) -> Response {
    match registry.volumes.id_of(&name) {
        Some(id) => registry.volumes.object(&id),
        None => error(404, &format!("Volume with name {name} not found")),
    }
}

pub(super) async fn one(State(registry): Shared, Path(id): Path<String>) -> Response {
    registry.volumes.object(&id)
}

pub(super) async fn remove(State(registry): Shared, Path(id): Path<String>) -> Response {
    match registry.volumes.all().remove(&id) {
        Some(_) => StatusCode::OK.into_response(),
        None => error(404, &format!("Volume {id} not found")),
    }
}
