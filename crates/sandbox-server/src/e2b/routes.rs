//! Every route of the protocol.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post, put};

use super::app::{self, App, CODE_PORT, Owner, Target};
use super::error::{ApiError, sandbox_gone};
use super::{
    body_timeout, control, create, envelope, faults, files, filesystem, interpreter, metrics,
    process, status, templates, watchers,
};

/// Makes the service of a server, with routes of other protocols beside its own.
pub(super) fn router(app: Arc<App>, others: Router) -> Router {
    let control_plane = Router::new()
        .route("/status", get(status::status))
        .route("/sandboxes", post(create::create_v1).get(control::list_v1))
        .route("/v2/sandboxes", post(create::create_v2).get(control::list))
        .route("/sandboxes/metrics", get(metrics::metrics_of_many))
        .route("/sandboxes/{id}", get(control::get).delete(control::kill))
        .route("/sandboxes/{id}/timeout", post(control::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(control::refresh))
        .route("/sandboxes/{id}/pause", post(control::pause))
        .route("/sandboxes/{id}/resume", post(control::connect))
        .route("/sandboxes/{id}/connect", post(control::connect))
        .route("/v2/sandboxes/{id}/connect", post(control::connect))
        .route("/sandboxes/{id}/fork", post(templates::fork))
        .route("/sandboxes/{id}/snapshots", post(templates::create_snapshot))
        .route("/sandboxes/{id}/network", put(control::set_network))
        .route("/sandboxes/{id}/metrics", get(metrics::metrics))
        .route("/sandboxes/{id}/logs", get(control::logs_v1))
        .route("/v2/sandboxes/{id}/logs", get(control::logs))
        .route("/snapshots", get(templates::list_snapshots))
        .route("/templates", get(templates::list_templates).post(no_builds))
        .route("/v2/templates", get(templates::list_templates).post(no_builds))
        .route("/v3/templates", post(no_builds))
        .route("/default-templates", get(templates::list_templates))
        .route("/templates/aliases/{alias}", get(templates::find_alias))
        .route("/templates/tags", post(no_tags).delete(no_tags))
        .route("/templates/{id}/tags", get(no_tags))
        .route("/templates/{id}/files/{hash}", get(no_builds))
        .route("/templates/{id}", delete(templates::delete_template))
        .route("/volumes", get(no_volumes).post(no_volumes))
        .route("/volumes/{id}", get(no_volumes).delete(no_volumes))
        .route("/secrets", get(no_secrets).post(no_secrets))
        .route("/secrets/{id}", get(no_secrets).post(no_secrets).delete(no_secrets));
    let envd = Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics::envd_metrics))
        .route("/envs", get(control::envd_envs))
        .route("/init", post(control::envd_init))
        .route(
            "/files",
            get(files::download).post(files::upload).layer(DefaultBodyLimit::disable()),
        )
        .route("/process.Process/Start", post(process::start))
        .route("/process.Process/Connect", post(process::connect))
        .route("/process.Process/List", post(process::list))
        .route("/process.Process/Update", post(process::update))
        .route("/process.Process/SendInput", post(process::send_input))
        .route("/process.Process/StreamInput", post(process::stream_input))
        .route("/process.Process/SendSignal", post(process::send_signal))
        .route("/process.Process/CloseStdin", post(process::close_stdin))
        .route("/filesystem.Filesystem/Stat", post(filesystem::stat))
        .route("/filesystem.Filesystem/MakeDir", post(filesystem::make_dir))
        .route("/filesystem.Filesystem/Move", post(filesystem::move_entry))
        .route("/filesystem.Filesystem/ListDir", post(filesystem::list_dir))
        .route("/filesystem.Filesystem/Remove", post(filesystem::remove))
        .route("/filesystem.Filesystem/WatchDir", post(watchers::watch_dir))
        .route("/filesystem.Filesystem/CreateWatcher", post(watchers::create_watcher))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(watchers::get_watcher_events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(watchers::remove_watcher));
    let code = Router::new()
        .route("/execute", post(interpreter::execute))
        .route("/contexts", get(interpreter::list_contexts).post(interpreter::create_context))
        .route("/contexts/{id}", delete(interpreter::delete_context))
        .route("/contexts/{id}/restart", post(interpreter::restart_context));
    let routes = control_plane
        .merge(envd)
        .merge(code)
        // Behind the choice of the sandbox: a program in a sandbox may have the same routes.
        .merge(others.with_state(()))
        .fallback(no_route)
        .layer(DefaultBodyLimit::max(envelope::MAX_MESSAGE))
        .layer(from_fn_with_state(Arc::clone(&app), body_timeout::limit))
        .layer(from_fn_with_state(Arc::clone(&app), app::route));
    let routes = match &app.faults {
        Some(_) => routes.layer(from_fn_with_state(Arc::clone(&app), faults::inject)),
        None => routes,
    };
    routes.with_state(app)
}

/// The health of a sandbox, of its code interpreter, or of the server. It needs no key.
async fn health(State(app): State<Arc<App>>, request: Request) -> Response {
    let Some(target) = request.extensions().get::<Target>() else {
        return StatusCode::NO_CONTENT.into_response();
    };
    match app.find(&target.id) {
        Some(record) if !record.is_paused() => match target.port {
            CODE_PORT => "OK".into_response(),
            _ => StatusCode::NO_CONTENT.into_response(),
        },
        _ => sandbox_gone(&target.id),
    }
}

async fn no_builds(_: Owner) -> ApiError {
    ApiError::not_here("building a template")
}

async fn no_tags(_: Owner) -> ApiError {
    ApiError::not_here("a tag of a template")
}

async fn no_volumes(_: Owner) -> ApiError {
    ApiError::not_here("a volume")
}

async fn no_secrets(_: Owner) -> ApiError {
    ApiError::not_here("a secret")
}

async fn no_route(request: Request) -> ApiError {
    ApiError::not_found(format!("no route for {} {}", request.method(), request.uri().path()))
}
