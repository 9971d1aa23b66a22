//! The start of a container: created, attached and started, with fewer optional features where its engine refuses some.

use bollard::container::AttachContainerResults;
use bollard::errors::Error as Cause;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{AttachContainerOptionsBuilder, StartContainerOptions};
use sandbox_core::random_hex;
use sandbox_engine::background;

use crate::container::{ContainerSpec, create_request};
use crate::container_guard::ContainerGuard;
use crate::engine::Engine;
use crate::error::{StartError, StartFailure, check_warnings, image_not_found, parse_create_error};
use crate::optional_features::{OptionalFeatures, SupportedFeatures};
use crate::owner::Owner;
use crate::podman;

/// A container whose init process waits for its input.
pub(crate) struct StartedContainer {
    pub(crate) guard: ContainerGuard,
    pub(crate) attached: AttachContainerResults,
    /// The word by which the agent's bootstrap knows its owner.
    pub(crate) nonce: String,
    /// The request, where the engine or its runtime may leave out parts of it silently.
    pub(crate) unverified: Option<ContainerCreateBody>,
}

/// Starts a container, and tries again without a feature that the engine refuses. `adapt` changes the request for another
/// init process than the agent's bootstrap.
///
/// # Errors
/// Those of the engine, and `Unsupported` for limits that it would not enforce.
pub(crate) async fn start_container(
    engine: &Engine,
    spec: &ContainerSpec<'_>,
    supported: &SupportedFeatures,
    id: &str,
    adapt: impl Fn(&mut ContainerCreateBody),
) -> Result<StartedContainer, StartError> {
    let (mut features, mut name) = (supported.get(), format!("sandbox-{id}"));
    let started = loop {
        let error = match try_start(engine, spec, features, id, name.clone(), &adapt).await {
            Ok(started) => break started,
            Err(error) => error,
        };
        let StartFailure::RefusedFeature(feature) = error.failure else { return Err(error) };
        tracing::debug!(error = %error.error, ?feature, "the engine refuses a feature: retried without it");
        // The container of the first attempt may not have been removed yet.
        (features, name) = (features.without(feature), name + "-again");
    };
    supported.set(features);
    Ok(started)
}

async fn try_start(
    engine: &Engine,
    spec: &ContainerSpec<'_>,
    features: OptionalFeatures,
    id: &str,
    name: String,
    adapt: &impl Fn(&mut ContainerCreateBody),
) -> Result<StartedContainer, StartError> {
    let (options, nonce, docker) = (spec.options, random_hex(16), &engine.docker);
    let mut request = create_request(spec, features, id, &nonce, Owner::this_process().as_ref());
    adapt(&mut request);
    // Podman reads these files until the container has started.
    let files = engine.is_podman().then(|| podman::apply(&mut request)).transpose()?;
    let is_doubtful = engine.is_podman() || spec.engine.is_rootless || options.runtime.is_some();
    let unverified = is_doubtful.then(|| request.clone());
    let platform = options.platform.as_deref();
    let (guard, created) =
        ContainerGuard::create(docker, name, platform, spec.base_image.cloned(), request).await?;
    let created = created.map_err(|error| {
        let is_missing = matches!(
            &error,
            Cause::DockerResponseServerError { status_code: 404, message }
                if message.to_ascii_lowercase().contains("image")
        );
        match is_missing {
            true => image_not_found(&options.image).into(),
            false => parse_create_error(error, options, features),
        }
    })?;
    check_warnings(&created.warnings)?;
    let attach = AttachContainerOptionsBuilder::default()
        .stream(true)
        .stdin(true)
        .stdout(true)
        .stderr(true)
        .build();
    let attached = docker
        .attach_container(&guard.name, Some(attach))
        .await
        .map_err(|error| parse_create_error(error, options, features))?;
    // Starts in the background, so that a cancelled create does not remove a container that is starting: Docker 20.10 would
    // list that one for ever.
    let docker = docker.clone();
    let starting = background(async move {
        let started = docker.start_container(&guard.name, None::<StartContainerOptions>).await;
        drop(files);
        (guard, started)
    });
    let (guard, started) = starting.await?;
    started.map_err(|error| parse_create_error(error, options, features))?;
    Ok(StartedContainer { guard, attached, nonce, unverified })
}
