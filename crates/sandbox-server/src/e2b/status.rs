//! The state of the server, for the person who started it: its backend with every check, and its sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sandbox_core::{CallContext, Health, with_flags};
use serde_json::{Value, json};

use super::app::{App, Owner};

/// Returns the health of the backend, with circuit breakers among its checks, and the number of sandboxes.
pub(super) async fn status(_: Owner, State(app): State<Arc<App>>) -> Json<Value> {
    let health = app.backend.health(&CallContext::new()).await;
    let mut health = health.unwrap_or_else(|error| Health {
        detail: error.to_string(),
        fix: error.hint().map(str::to_owned),
        ..Health::default()
    });
    let fixes = health.checks.iter_mut().map(|check| &mut check.fix).chain([&mut health.fix]);
    for fix in fixes.flatten() {
        *fix = with_flags(fix);
    }
    app.forget_ended();
    Json(json!({
        "variant": app.backend.variant(),
        "started_at": app.started_at.to_rfc3339(),
        "sandboxes": app.table.all().len(),
        "max_sandboxes": app.ceiling.max_sandboxes,
        "health": health,
    }))
}
