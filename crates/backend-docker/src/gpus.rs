//! GPUs of the engine's host: the requested number, and a check that the engine can provide any.
//!
//! Engines provide GPUs by number and not by type, through the toolkit of their vendor:
//! <https://docs.docker.com/engine/containers/gpu/>.

use bollard::models::{DeviceRequest, SystemInfo};
use sandbox_core::{Error, Result};

/// The runtime that the toolkit adds to an engine.
const RUNTIME: &str = "nvidia";

/// Prefix of the ids by which newer engines list such devices.
const DEVICE_PREFIX: &str = "nvidia.com/gpu";

/// Words of an engine without a driver for the requested devices.
const NO_DRIVER: &str = "could not select device driver";

/// Number of GPUs of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gpus {
    /// Any one GPU.
    One,
    /// Every GPU of the host.
    All,
}

impl Gpus {
    /// Parses the field `gpu`.
    ///
    /// # Errors
    /// `Unsupported` for a type.
    pub(crate) fn parse(requested: &str) -> Result<Self> {
        match requested.to_ascii_lowercase().as_str() {
            "any" => Ok(Self::One),
            "all" => Ok(Self::All),
            _ => Err(unsupported(format!(
                "an engine cannot provide a GPU of the type {requested:?}"
            ))
            .with_hint(
                "engines know GPUs only by number: `any` is one of them, `all` is every one",
            )),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::One => "any",
            Self::All => "all",
        }
    }

    /// Returns the request for the GPUs, like that of `docker run --gpus`.
    pub(crate) fn request(self) -> DeviceRequest {
        DeviceRequest {
            driver: None,
            count: Some(match self {
                Self::One => 1,
                Self::All => -1,
            }),
            device_ids: None,
            capabilities: Some(vec![vec!["gpu".to_owned()]]),
            options: None,
        }
    }

    /// Refuses an engine that cannot provide GPUs, before a container is created.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check(engine_name: &str, is_podman: bool, has_gpus: bool) -> Result<()> {
        if is_podman {
            return Err(unsupported("Podman ignores requests for a GPU".to_owned())
                .with_hint("use Docker with the NVIDIA Container Toolkit"));
        }
        if has_gpus { Ok(()) } else { Err(no_gpus(engine_name)) }
    }
}

/// Returns true for an engine that reports GPUs.
pub(crate) fn are_available(info: &SystemInfo) -> bool {
    let has_runtime = info.runtimes.as_ref().is_some_and(|known| known.contains_key(RUNTIME));
    let mut devices = info.discovered_devices.iter().flatten();
    has_runtime
        || devices
            .any(|device| device.id.as_deref().is_some_and(|id| id.starts_with(DEVICE_PREFIX)))
}

/// Returns true if an engine refused a container for its GPUs.
pub(crate) fn is_refusal(message: &str) -> bool {
    message.to_ascii_lowercase().contains(NO_DRIVER)
}

/// Hint for an engine without GPUs.
pub(crate) const INSTALL_HINT: &str = "install the NVIDIA Container Toolkit where the engine is and run `nvidia-ctk runtime configure` \
     there: `docker info` then lists the runtime nvidia";

fn no_gpus(engine: &str) -> Error {
    unsupported(format!(
        "the engine has no GPUs: {engine} lists neither the runtime nvidia nor such devices"
    ))
    .with_hint(INSTALL_HINT)
}

fn unsupported(message: String) -> Error {
    Error::unsupported("create", message).with_context("field", "gpu")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use sandbox_core::{Backend as _, CallContext, CreateSpec, ErrorKind};
    use serde_json::{Value, json};

    use super::*;
    use crate::DockerBackend;
    use crate::config::DockerConfig;
    use crate::fake_engine::{Answer, FakeEngine};

    /// Creates a sandbox with a GPU. Returns the error, and the requests for devices that the engine has seen.
    async fn create(gpu: &str, version: Value, info: Value) -> (Error, Vec<Value>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&seen);
        let engine = FakeEngine::start(move |request, _| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", "version") => Answer::now(200, version.clone()),
                ("GET", "info") => Answer::now(200, info.clone()),
                ("GET", "images/json" | "containers/json") => Answer::now(200, json!([])),
                ("GET", _) => Answer::now(200, json!({"Id": "sha256:one", "Config": {}})),
                ("POST", "containers/create") => {
                    requests
                        .lock()
                        .unwrap()
                        .push(request.body["HostConfig"]["DeviceRequests"].clone());
                    let why = "could not select device driver \"\" with capabilities: [[gpu]]";
                    Answer::now(500, json!({"message": why}))
                }
                _ => Answer::now(404, json!({"message": "No such container"})),
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let config = DockerConfig {
            host: Some(engine.address()),
            snapshot_directory: Some(folder.path().join("snapshots")),
            ..DockerConfig::default()
        };
        let mut spec = CreateSpec::default();
        spec.gpu = Some(gpu.to_owned());
        let error =
            DockerBackend::new(config).create(&CallContext::new(), spec).await.err().unwrap();
        let seen = seen.lock().unwrap().clone();
        (error, seen)
    }

    #[tokio::test]
    async fn gpus_are_refused_before_a_container_is_created_where_there_are_none() {
        let docker = json!({"ApiVersion": "1.41"});
        let podman = json!({
            "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}],
        });
        let without = json!({"CgroupDriver": "systemd", "Runtimes": {"runc": {"path": "runc"}}});
        let with = json!({"CgroupDriver": "systemd", "Runtimes": {"nvidia": {"path": "n"}}});
        for (gpu, version, info, part) in [
            ("any", &docker, &without, "nvidia-ctk"),
            ("all", &docker, &without, "nvidia-ctk"),
            ("T4", &docker, &with, "by number"),
            ("any", &podman, &with, "Docker"),
        ] {
            let (error, seen) = create(gpu, version.clone(), info.clone()).await;
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{gpu}: {error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains(part)), "{gpu}: {error:?}");
            assert_eq!(seen, Vec::<Value>::new(), "{gpu}");
        }
    }

    #[tokio::test]
    async fn gpus_are_requested_from_an_engine_that_reports_them() {
        let docker = json!({"ApiVersion": "1.41"});
        let runtime = json!({"CgroupDriver": "systemd", "Runtimes": {"nvidia": {"path": "n"}}});
        let device = json!({
            "CgroupDriver": "systemd", "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}],
        });
        for (gpu, info, count) in [("any", runtime, 1), ("all", device, -1)] {
            let (error, seen) = create(gpu, docker.clone(), info).await;
            let request = json!([{"Count": count, "Capabilities": [["gpu"]]}]);
            assert_eq!(seen, [request], "{gpu}");
            // This engine reports GPUs and has no driver after all.
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("nvidia-ctk")), "{error:?}");
        }
    }
}
