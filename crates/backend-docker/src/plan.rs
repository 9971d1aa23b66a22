//! Plan of a create: everything that is checked and resolved before the container exists.

use std::collections::BTreeMap;

use sandbox_cells::launchers::CellLaunchers;
use sandbox_core::{CreateSpec, Error, Result, resolve_directory};
use sandbox_engine::environment::add_defaults;
use sandbox_engine::{SnapshotStore, StoredSnapshot};

use crate::capabilities::check;
use crate::commit::BaseImage;
use crate::config::{Options, User};
use crate::container::{HOME, WORKSPACE, in_memory};
use crate::engine::Engine;
use crate::images::{self, Images};
use crate::label::runner_from_labels;
use crate::mounts::HostFiles;
use crate::network::EgressMode;
use crate::podman;

/// A checked create.
pub(crate) struct Plan {
    pub(crate) options: Options,
    /// Id of the image that was inspected: its name may be that of another image by now.
    pub(crate) image: String,
    pub(crate) files: HostFiles,
    pub(crate) egress: EgressMode,
    pub(crate) snapshot: Option<StoredSnapshot>,
    /// Environment of every process in the container.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: String,
}

impl Plan {
    /// Checks a create against the engine, the image and the snapshot.
    pub(crate) async fn new(
        engine: &Engine,
        spec: &CreateSpec,
        mut options: Options,
        snapshots: &SnapshotStore,
        launchers: &CellLaunchers,
    ) -> Result<Self> {
        let docker = &engine.docker;
        let files = HostFiles::open(engine, spec, snapshots.directory()).await?;
        options.user = options.user.or_else(|| files.owner());
        // Podman starts further programs without the groups of the container, and root needs that of code.
        options.has_root &= !engine.is_podman();
        let egress = EgressMode::for_spec(spec, &options, engine, launchers).await;
        let find = |name: &String| snapshots.find("create", name);
        let snapshot = spec.snapshot.as_ref().map(find).transpose()?;
        let snapshot_image = snapshot.as_ref().and_then(StoredSnapshot::image);
        if let Some(image) = snapshot_image {
            if spec.image.is_some() {
                let message = "cannot be set with this snapshot, which has its own image";
                return Err(Error::invalid("image", message.to_owned()));
            }
            image.clone_into(&mut options.image);
        }
        // The image of a snapshot is in no registry.
        if options.pull && snapshot_image.is_none() {
            let progress = |step: &str| tracing::info!(image = options.image, "{step}");
            Images::new(docker).pull_missing(&options.image, progress).await?;
        }
        let image = images::inspect(docker, &options.image).await;
        let image = image.map_err(|error| match &snapshot {
            Some(stored) if stored.image().is_some() => error.with_hint(format!(
                "the image belongs to the snapshot, which was taken with the engine at {}; use a snapshot of this engine",
                stored.engine().unwrap_or("an address that was not recorded")
            )),
            _ => error,
        })?;
        if engine.is_podman() {
            podman::check_platform(&image, &options)?;
        }
        let id = image.id.unwrap_or_else(|| options.image.clone());
        let image = image.config.unwrap_or_default();
        // Only workers have snapshots.
        if !options.names_runner && snapshot.is_none() {
            options.runner =
                runner_from_labels(&options.image, image.labels.as_ref())?.unwrap_or_default();
            check(spec, &options.runner)?;
        }
        if snapshot_image.is_some() {
            options.user = options.user.or_else(|| snapshot_user(image.user.as_deref()));
        }
        files.check(options.user())?;
        check_disk(spec, &options, &files, &image.volumes.unwrap_or_default())?;
        let env = environment(spec, &image.env.unwrap_or_default());
        let cwd = resolve_directory(WORKSPACE, spec.working_dir.as_deref().unwrap_or("."));
        Ok(Self { options, image: id, files, egress, snapshot, env, cwd })
    }

    /// Returns the image of the snapshot that the container starts from.
    pub(crate) fn base_image(&self, snapshots: &SnapshotStore) -> Option<BaseImage> {
        let image = self.snapshot.as_ref().and_then(StoredSnapshot::image)?;
        Some(BaseImage { image: image.to_owned(), snapshots: snapshots.clone() })
    }
}

/// Returns the user that owns the files in the image of a snapshot, unless that is root.
fn snapshot_user(user: Option<&str>) -> Option<User> {
    user.and_then(User::parse).filter(|user| user.id != 0 && user.group != 0)
}

/// Returns the environment of every process: the image's, then the defaults of code, then the caller's.
fn environment(spec: &CreateSpec, image: &[String]) -> BTreeMap<String, String> {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env = BTreeMap::from(
        [("PATH", path), ("LANG", "C.UTF-8"), ("SHELL", "/bin/sh")]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let pairs = image.iter().filter_map(|pair| pair.split_once('='));
    env.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let own = [("HOME", HOME), ("USER", "sandbox"), ("LOGNAME", "sandbox")];
    env.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    let secrets = spec.secrets.iter();
    env.extend(secrets.map(|(name, value)| (name.clone(), value.expose().to_owned())));
    add_defaults(&mut env, spec);
    env
}

/// Refuses data on the engine's disk, where no limit counts it, unless the caller allows it with `writable_root`.
fn check_disk(
    spec: &CreateSpec,
    options: &Options,
    files: &HostFiles,
    volumes: &[String],
) -> Result<()> {
    if spec.disk.is_some() && options.writable_root {
        let message =
            "cannot be limited with `writable_root`: the image's files are on the engine's disk";
        return Err(Error::invalid("disk", message.to_owned()));
    }
    // A mount at the path of a volume takes its place; a mount above it does not.
    let covered = |path: &str| in_memory().any(|known| known == path) || files.has_target(path);
    let Some(volume) = volumes.iter().find(|path| !covered(path)) else {
        return Ok(());
    };
    let message = format!("the image keeps {volume} in a volume, which no limit counts");
    Err(Error::unsupported("create", message)
        .with_hint("build it without `VOLUME`, or mount one of your directories there"))
}
