//! Snapshots: archives of the workspace, which are kept on this computer. The bridge keeps none.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use sandbox_cloud::CreateLocks;
use sandbox_core::{
    ByteStream, CallContext, Error, ErrorKind, Result, SnapshotInfo, Variant, random_hex, unix_now,
};
use sandbox_engine::check_snapshot_name;
use sandbox_engine::host::{FileSystem as _, Links};
use sandbox_shell::{ShellFiles, ShellHost};
use tokio::fs::{File, create_dir_all, remove_file, rename};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::config::CloudflareConfig;
use crate::create::WORKSPACE;
use crate::programs::Programs;
use crate::records::{self, SnapshotRecord};
use crate::remote::{Handle, info};

/// Bytes that are read from an archive at once.
const CHUNK: usize = 256 << 10;

/// Parts of a sandbox that a snapshot does not carry.
const LEFT_OUT: [&str; 3] =
    ["files outside of /workspace", "processes", "contexts and their variables"];

fn shell_files(programs: &Arc<Programs>) -> ShellFiles {
    let shell: Arc<dyn ShellHost> = Arc::<Programs>::clone(programs);
    ShellFiles::new(shell, WORKSPACE, "")
}

/// Returns the directory of archives.
fn archives(config: &CloudflareConfig, operation: &'static str) -> Result<PathBuf> {
    let records = records::snapshots(config);
    records.directory().map(|directory| directory.join("archives")).ok_or_else(|| {
        Error::unsupported(operation, "there is no directory of this user for snapshots")
            .with_hint("set XDG_STATE_HOME or HOME")
    })
}

fn kept(operation: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| {
        let message = format!("the archive of the snapshot: {error}");
        Error::new(ErrorKind::Unavailable, operation, message).with_source(error)
    }
}

pub(crate) fn describe(id: &str, record: &SnapshotRecord) -> SnapshotInfo {
    SnapshotInfo {
        id: id.to_owned(),
        name: record.name.clone(),
        sandbox_id: record.sandbox_id.clone(),
        created_at: record.created_at,
        size: record.size,
        description: record.description.clone(),
        directories: vec![WORKSPACE.to_owned()],
        contexts: Vec::new(),
        variables: Vec::new(),
        left_out: LEFT_OUT.map(str::to_owned).into(),
    }
}

/// Finds a snapshot by its name or id.
pub(crate) fn find(
    config: &CloudflareConfig,
    operation: &'static str,
    wanted: &str,
) -> Result<(String, SnapshotRecord)> {
    let all = records::snapshots(config).all();
    let found = all.into_iter().find(|(id, record)| record.name == wanted || id == wanted);
    found.ok_or_else(|| {
        let message = format!("there is no snapshot {wanted:?}");
        Error::new(ErrorKind::NotFound, operation, message)
            .with_hint("snapshots are kept on the computer that took them")
    })
}

/// Packs the workspace of a sandbox into a snapshot of this computer.
pub(crate) async fn take(
    handle: &Handle,
    call: &CallContext,
    name: &str,
    description: &str,
) -> Result<SnapshotInfo> {
    let operation = "create_snapshot";
    check_snapshot_name(name)?;
    let config = &handle.factory.config;
    let (records, directory) = (records::snapshots(config), archives(config, operation)?);
    let key = format!("snapshot:{name}");
    let _locks = CreateLocks::acquire(records.directory(), call, operation, [key]).await?;
    if find(config, operation, name).is_ok() {
        let message = format!("there is a snapshot {name:?} already");
        return Err(Error::new(ErrorKind::AlreadyExists, operation, message)
            .with_hint("choose another name, or delete that one: `Sandbox::delete_snapshot()`"));
    }
    let id = random_hex(16);
    create_dir_all(&directory).await.map_err(kept(operation))?;
    let (whole, part) = (directory.join(format!("{id}.tar")), directory.join(format!("{id}.part")));
    let packed = async {
        let mut content = shell_files(&handle.programs).read_archive(WORKSPACE).await?;
        let mut file = File::create(&part).await.map_err(kept(operation))?;
        let mut size = 0;
        while let Some(chunk) = content.next().await.transpose()? {
            size += chunk.len() as u64;
            file.write_all(&chunk).await.map_err(kept(operation))?;
        }
        file.sync_all().await.map_err(kept(operation))?;
        rename(&part, &whole).await.map_err(kept(operation))?;
        Ok::<_, Error>(size)
    };
    let size = match packed.await {
        Ok(size) => size,
        Err(error) => {
            let _ = remove_file(&part).await;
            return Err(error);
        }
    };
    let record = SnapshotRecord {
        name: name.to_owned(),
        description: description.to_owned(),
        sandbox_id: info(handle).id,
        created_at: unix_now(),
        size,
    };
    records.write(&id, &record);
    Ok(describe(&id, &record))
}

/// Unpacks a snapshot into the workspace of a new sandbox.
pub(crate) async fn unpack(
    config: &CloudflareConfig,
    programs: &Arc<Programs>,
    id: &str,
) -> Result<()> {
    let operation = "create";
    let path = archives(config, operation)?.join(format!("{id}.tar"));
    let file = File::open(path).await.map_err(kept(operation))?;
    let content: ByteStream = Box::pin(stream::unfold(Some(file), move |file| async move {
        let mut file = file?;
        let mut chunk = vec![0; CHUNK];
        match file.read(&mut chunk).await {
            Ok(0) => None,
            Ok(count) => {
                chunk.truncate(count);
                Some((Ok(chunk.into()), Some(file)))
            }
            Err(error) => Some((Err(kept(operation)(error)), None)),
        }
    }));
    shell_files(programs).write_archive(WORKSPACE, content, Links::Any).await
}

/// Deletes a snapshot.
pub(crate) async fn delete(config: &CloudflareConfig, name: &str) -> Result<()> {
    let operation = "delete_snapshot";
    let (id, _) = find(config, operation, name)?;
    records::snapshots(config).remove(&id);
    match remove_file(archives(config, operation)?.join(format!("{id}.tar"))).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(kept(operation)(error)),
        _ => Ok(()),
    }
}

/// Lists the snapshots of this computer.
pub(crate) fn list(config: &CloudflareConfig) -> Vec<SnapshotInfo> {
    let all = records::snapshots(config).all();
    all.iter().map(|(id, record)| describe(id, record)).collect()
}

/// Returns the error for going back to a snapshot.
pub(crate) fn no_way_back() -> Error {
    Error::unsupported("restore_snapshot", "cloudflare does not support restore_snapshot")
        .with_context("variant", Variant::CLOUDFLARE.as_str())
        .with_hint("make a new sandbox from the snapshot: `.snapshot_name(\"NAME\")` at create")
}
