//! Images: one that the service has already, or one that it builds from a registry and lines of a Dockerfile.

use std::time::Duration;

use sandbox_cloud::Backoff;
use sandbox_core::{CallContext, CreateSpec, Error, ErrorKind, Result};

use crate::api::{Api, SecretOf};
use crate::client_factory::ApiFactory;
use crate::config::{CreateOptions, DEFAULT_IMAGE};
use crate::error::describe_end;
use crate::records;
use crate::wire::{
    GenericResult, GpuConfig, Image, ImageGetOrCreateRequest, ImageRegistryConfig,
    NAMESPACE_WORKSPACE, REGISTRY_STATIC_CREDENTIALS, status,
};

/// Oldest version of the image builder that takes an image as it is. Older ones put the provider's client into it.
const PLAIN_BUILDER: &str = "2025.06";

/// Bytes of a build log that an error repeats, from its end.
const MAX_LOG: usize = 4 << 10;

/// Returns the id of the image that a create asks for, and builds the image where the service does not have it.
///
/// # Errors
/// `NotFound` for a snapshot that does not exist; `InvalidArgument` with the log for an image that cannot be built.
pub(crate) async fn resolve(
    factory: &ApiFactory,
    api: &Api,
    call: &CallContext,
    app_id: &str,
    spec: &CreateSpec,
    options: &CreateOptions,
) -> Result<String> {
    if let Some(name) = &spec.snapshot {
        return find_snapshot(factory, api, name);
    }
    let named = spec.image.as_ref().or(factory.config.image.as_ref());
    let named = named.map_or(DEFAULT_IMAGE, String::as_str);
    let is_at_the_service = named.starts_with("im-") && !named.contains([':', '/']);
    if is_at_the_service && options.build.is_empty() {
        return Ok(named.to_owned());
    }
    let lines: Vec<String> =
        std::iter::once(format!("FROM {named}")).chain(options.build.clone()).collect();
    if !options.force_build
        && let Some(id) = factory.known_image(&api.account, &lines)
    {
        return Ok(id);
    }
    let id = build(api, call, app_id, spec, options, &lines).await?;
    factory.keep_image(&api.account, &lines, &id);
    Ok(id)
}

/// Returns true when a create asks for the default image as it is.
pub(crate) fn is_default(factory: &ApiFactory, spec: &CreateSpec, options: &CreateOptions) -> bool {
    let named = spec.image.as_ref().or(factory.config.image.as_ref());
    spec.snapshot.is_none()
        && options.build.is_empty()
        && named.is_none_or(|named| named == DEFAULT_IMAGE)
}

async fn build(
    api: &Api,
    call: &CallContext,
    app_id: &str,
    spec: &CreateSpec,
    options: &CreateOptions,
    lines: &[String],
) -> Result<String> {
    let version = api.builder_version(call).await?;
    let builder_version =
        if version.as_str() < PLAIN_BUILDER { PLAIN_BUILDER.to_owned() } else { version };
    let registry = match &options.registry_secret {
        None => None,
        Some(name) => Some(ImageRegistryConfig {
            registry_auth_type: REGISTRY_STATIC_CREDENTIALS,
            secret_id: api.secret(call, app_id, SecretOf::Name(name)).await?,
        }),
    };
    // A build that is to be done on a machine with a GPU says so in a line of its own, which the service understands.
    let gpu = spec.gpu.as_ref().filter(|_| !options.build.is_empty());
    let image = Image {
        dockerfile_commands: lines.to_vec(),
        image_registry_config: registry,
        gpu_config: gpu.map(|gpu| GpuConfig { count: 1, gpu_type: gpu.to_uppercase() }),
        ..Image::default()
    };
    let request = ImageGetOrCreateRequest {
        image: Some(image),
        app_id: app_id.to_owned(),
        force_build: options.force_build,
        namespace: NAMESPACE_WORKSPACE,
        builder_version,
    };
    let answer = api.image(call, &request).await?;
    let done = answer.result.filter(|result| result.status != status::RUNNING);
    let mut log = String::new();
    let result = match done {
        Some(result) => result,
        None => await_build(api, call, &answer.image_id, &mut log).await?,
    };
    match result.status {
        status::SUCCESS => Ok(answer.image_id),
        _ => {
            if log.is_empty() {
                // The service has built it before, and keeps the log.
                let _ = await_build(api, call, &answer.image_id, &mut log).await;
            }
            Err(failed(&lines[0], &result, &log))
        }
    }
}

/// Time in which the log of a build may not be readable.
const MAX_OUTAGE: Duration = Duration::from_secs(300);

/// Waits for the result of a build. Its log is progress, and the reason of a failure.
async fn await_build(
    api: &Api,
    call: &CallContext,
    image_id: &str,
    log: &mut String,
) -> Result<GenericResult> {
    let mut last_entry_id = String::new();
    let mut backoff = Backoff::new(MAX_OUTAGE);
    loop {
        let kept = &mut *log;
        let keep = |text: &str| {
            text.lines().filter(|line| !line.trim().is_empty()).for_each(|line| {
                tracing::info!(image_id, "{line}");
            });
            kept.push_str(text);
            if kept.len() > 2 * MAX_LOG {
                let from = kept.ceil_char_boundary(kept.len() - MAX_LOG);
                kept.drain(..from);
            }
        };
        match api.join_image(call, image_id, &mut last_entry_id, keep).await {
            Ok(Some(result)) => return Ok(result),
            Ok(None) => backoff = Backoff::new(MAX_OUTAGE),
            // A stream that is cut is opened again where it was.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                if !backoff.wait(call).await {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn failed(from: &str, result: &GenericResult, log: &str) -> Error {
    let why = match result.exception.trim() {
        "" => describe_end(result).unwrap_or_default(),
        why => why.to_owned(),
    };
    let mut message = format!("the image `{from}` could not be built: {why}");
    let log = log.trim();
    let log = &log[log.ceil_char_boundary(log.len().saturating_sub(MAX_LOG))..];
    if !log.is_empty() {
        message += "\n";
        message += log;
    }
    Error::new(ErrorKind::InvalidArgument, "create", message).with_context("field", "image").with_hint(
        "look whether the image exists and can be read by anyone, or name a secret with the password of its registry: \
         the provider option `registry_secret`",
    )
}

/// Returns the image of a snapshot, by its name or its id.
fn find_snapshot(factory: &ApiFactory, api: &Api, name: &str) -> Result<String> {
    let all = records::snapshots(&factory.config).all();
    let of_server = all.iter().filter(|(_, record)| record.server == api.account.server.as_str());
    let found = of_server.clone().find(|(id, record)| record.name == name || id == name);
    if let Some((id, _)) = found {
        return Ok(id.clone());
    }
    // The id of an image of the service, which other computers may have made.
    if name.starts_with("im-") {
        return Ok(name.to_owned());
    }
    let names: Vec<_> = of_server.map(|(_, record)| record.name.as_str()).collect();
    let message = format!("snapshot {name:?} not found (available: {})", names.join(", "));
    Err(Error::new(ErrorKind::NotFound, "create", message)
        .with_hint("names of snapshots are kept on the computer that made them; the id of the image works everywhere"))
}
