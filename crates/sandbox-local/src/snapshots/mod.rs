//! The files of a sandbox as a snapshot, and a sandbox with the files of a snapshot.
//!
//! Those are the working directory and the packages that were installed, as archives. Interpreters are the backend's.

mod store;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandbox_agent::box_io::BoxFiles;
use sandbox_core::{Effect, Error, ErrorKind, Result, SnapshotInfo, random_hex};

use self::store::Notes;
pub use self::store::{
    Draft, LARGEST, STATE_DIRECTORY_VARIABLE, SnapshotStore, Stored, check_snapshot_name,
};
use crate::place::Place;

type Files = Arc<dyn BoxFiles>;

const WORKSPACE: &str = "workspace.tar";
const PACKAGES: &str = "packages.tar";

/// Most commands that are named one by one.
const NAMED_COMMANDS: usize = 8;

/// Characters of a command that are shown.
const SHOWN_COMMAND: usize = 60;

/// Where files of a snapshot belong in one sandbox.
struct Layout {
    work_dir: String,
    home: String,
    site: String,
    /// Whether the packages are in the working directory, which then has them all by itself.
    packages_inside: bool,
}

impl Place {
    fn layout(&self) -> Layout {
        let work_dir = self.work_dir.trim_end_matches('/').to_owned();
        let site = self.site();
        let home = site.rsplit_once('/').map_or("/", |(home, _)| home).to_owned();
        let packages_inside =
            site.strip_prefix(&work_dir).is_some_and(|rest| rest.starts_with('/'));
        Layout { work_dir, home, site, packages_inside }
    }

    /// Stores the files; which directories those are.
    ///
    /// # Errors
    /// `ResourceExhausted` when they are too large, `PermissionDenied` for a file that nobody in the sandbox can read, and
    /// what keeps them from being stored.
    pub async fn save(&self, operation: &'static str, draft: &mut Draft) -> Result<Vec<String>> {
        let layout = self.layout();
        self.save_directory(operation, draft, WORKSPACE, &layout.work_dir).await?;
        let mut directories = vec![layout.work_dir];
        let site = layout.site.clone();
        let stat = |files: Files| async move { files.stat(&site).await };
        match self.with_files(operation, stat).await {
            Ok(_) => {
                self.save_directory(operation, draft, PACKAGES, &layout.site).await?;
                if !layout.packages_inside {
                    directories.push(layout.site);
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(directories)
    }

    /// Gives a snapshot whose files are stored its name. `info` has what the caller knows of it.
    ///
    /// # Errors
    /// `AlreadyExists` when somebody else has taken the name meanwhile, and what keeps it from being stored.
    pub async fn finish(
        &self,
        operation: &'static str,
        draft: Draft,
        python: Option<String>,
        mut info: SnapshotInfo,
    ) -> Result<Stored> {
        info.sandbox_id = self.id.to_string();
        info.left_out.extend(self.running_commands());
        let wanted = match &self.packages {
            Some(packages) => packages.wanted.lock().await.clone(),
            None => Vec::new(),
        };
        let notes = Notes { packages_inside: self.layout().packages_inside, wanted, python };
        draft.finish(operation, info, notes)
    }

    async fn save_directory(
        &self,
        operation: &'static str,
        draft: &mut Draft,
        part: &str,
        path: &str,
    ) -> Result<()> {
        let pack = |files: Files| async move { files.read_archive(path).await };
        let content = self.content(operation, self.with_files(operation, pack).await?);
        draft.write(operation, part, content).await
    }

    fn running_commands(&self) -> Vec<String> {
        let all = self.commands.list();
        let running: Vec<_> = all.iter().filter(|command| command.ended_at.is_none()).collect();
        let name = |text: &str| {
            let shown: String = text.chars().take(SHOWN_COMMAND).collect();
            format!("command `{shown}`, which runs")
        };
        let mut named: Vec<_> =
            running.iter().take(NAMED_COMMANDS).map(|command| name(&command.command)).collect();
        if running.len() > NAMED_COMMANDS {
            named.push(format!("{} more commands, which run", running.len() - NAMED_COMMANDS));
        }
        named
    }

    /// Puts the files of a snapshot into a sandbox that has none yet.
    ///
    /// # Errors
    /// `ResourceExhausted` when there is no room, `InvalidArgument` when its packages are for another Python, `NotFound`
    /// when it was deleted.
    pub async fn load(
        &self,
        operation: &'static str,
        stored: &Stored,
        python: Option<&str>,
    ) -> Result<()> {
        check_python(stored, python)?;
        let layout = self.layout();
        self.unpack(operation, stored, WORKSPACE, &layout.work_dir).await?;
        if stored.notes.packages_inside && !layout.packages_inside {
            self.discard(operation, &format!("{}/.packages", layout.work_dir)).await?;
        }
        if stored.has(PACKAGES) && !(stored.notes.packages_inside && layout.packages_inside) {
            self.unpack(operation, stored, PACKAGES, &layout.site).await?;
        }
        self.know_packages(stored).await;
        Ok(())
    }

    /// Puts the files of a snapshot in the place of those that are there: all of them, or none. `still` ends what could
    /// meddle with that; it is waited for when it is known that there is room.
    ///
    /// # Errors
    /// As [`Place::load`]. When something that was there cannot be removed in the end, the effect of the error is `Applied`.
    pub async fn replace(
        &self,
        operation: &'static str,
        stored: &Stored,
        python: Option<&str>,
        still: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        check_python(stored, python)?;
        let layout = self.layout();
        let mark = random_hex(4);
        let fresh = format!("{}/.restored-{mark}", layout.work_dir);
        let fresh_site = format!("{}/.restored-{mark}.packages", layout.home);
        let outside = !layout.packages_inside;
        let unpacked = async {
            self.unpack(operation, stored, WORKSPACE, &fresh).await?;
            if stored.notes.packages_inside && outside {
                self.discard(operation, &format!("{fresh}/.packages")).await?;
            }
            if stored.has(PACKAGES) && outside {
                self.unpack(operation, stored, PACKAGES, &fresh_site).await?;
            } else if stored.has(PACKAGES) && !stored.notes.packages_inside {
                self.unpack(operation, stored, PACKAGES, &format!("{fresh}/.packages")).await?;
            }
            Ok(())
        };
        let former = format!("{}/.former-{mark}", layout.work_dir);
        let former_site = format!("{}/.former-{mark}.packages", layout.home);
        let swapped = async {
            unpacked.await?;
            still.await?;
            self.exchange(operation, &layout.work_dir, &fresh, &former).await
        };
        if let Err(error) = swapped.await {
            for path in [&fresh, &fresh_site] {
                // The error that counts is the first.
                let _ = self.discard(operation, path).await;
            }
            return Err(error);
        }
        let removed = async {
            if outside {
                self.move_if_there(operation, &layout.site, &former_site).await?;
                self.move_if_there(operation, &fresh_site, &layout.site).await?;
                self.discard(operation, &former_site).await?;
            }
            self.discard(operation, &former).await
        };
        self.know_packages(stored).await;
        removed.await.map_err(|error| error.with_effect(Effect::Applied))
    }

    async fn unpack(
        &self,
        operation: &'static str,
        stored: &Stored,
        part: &str,
        path: &str,
    ) -> Result<()> {
        let content = stored.read(operation, part).await?;
        let unpack = |files: Files| async move { files.write_archive(path, content).await };
        self.with_files(operation, unpack).await
    }

    /// Moves everything in `directory` to `former`, and everything in `fresh`, which is in there, into it.
    async fn exchange(
        &self,
        operation: &'static str,
        directory: &str,
        fresh: &str,
        former: &str,
    ) -> Result<()> {
        let exchange = |files: Files| async move {
            let staged = files.list(fresh).await?;
            let entries = files.list(directory).await?;
            files.make_directory(former, false).await?;
            let old = entries.iter().map(|entry| &entry.path).filter(|path| *path != fresh);
            let out = old.map(|path| (path.clone(), moved(path, former)));
            let back =
                staged.iter().map(|entry| (entry.path.clone(), moved(&entry.path, directory)));
            let mut done: Vec<(String, String)> = Vec::new();
            for (from, to) in out.chain(back) {
                if let Err(error) = files.rename(&from, &to).await {
                    for (from, to) in done.iter().rev() {
                        files.rename(to, from).await.map_err(|e| e.with_effect(Effect::Applied))?;
                    }
                    files.remove(former, true).await?;
                    return Err(error);
                }
                done.push((from, to));
            }
            files.remove(fresh, true).await
        };
        self.with_files(operation, exchange).await
    }

    async fn move_if_there(&self, operation: &'static str, from: &str, to: &str) -> Result<()> {
        self.with_files(
            operation,
            |files| async move { unless_missing(files.rename(from, to).await) },
        )
        .await
    }

    async fn discard(&self, operation: &'static str, path: &str) -> Result<()> {
        self.with_files(
            operation,
            |files| async move { unless_missing(files.remove(path, true).await) },
        )
        .await
    }

    async fn know_packages(&self, stored: &Stored) {
        if let Some(packages) = &self.packages {
            *packages.wanted.lock().await = stored.notes.wanted.clone();
            packages.any.store(stored.has(PACKAGES), Ordering::Release);
        }
    }
}

fn unless_missing(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The path that something has in another directory.
fn moved(path: &str, directory: &str) -> String {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    format!("{directory}/{name}")
}

/// Packages are for one version of Python, because some are compiled for it.
fn check_python(stored: &Stored, python: Option<&str>) -> Result<()> {
    let minor = |version: &str| version.split('.').take(2).collect::<Vec<_>>().join(".");
    match (&stored.notes.python, python) {
        (Some(had), Some(has)) if stored.has(PACKAGES) && minor(had) != minor(has) => {
            let name = &stored.info.name;
            let message =
                format!("of {name:?} has packages for Python {had}, and this is Python {has}");
            Err(Error::invalid("snapshot", message))
        }
        _ => Ok(()),
    }
}
