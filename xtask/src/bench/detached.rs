//! A cell in a sandbox that stays, as a whole process of the `sandboxes` program.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::row::{Bar, Row};
use crate::sample::{Measured, bare, compare, settle, text, whole};
use crate::setup::Setup;

/// `exec` of a cell against a bare start of `true` on this host, and what the way there may cost besides.
pub(crate) async fn exec(setup: &Setup) -> Row {
    let name = "sandboxes exec ID --lang python 1+1, in a sandbox that stays";
    let measured = match Stay::begin(setup) {
        Ok(stay) => {
            let ours = async || {
                let took =
                    whole(stay.sandboxes().args(["exec", &stay.id, "--lang", "python", "1+1"]));
                settle().await;
                took
            };
            let bare_true = async || {
                let took = bare(&mut Command::new("/bin/true"));
                settle().await;
                took
            };
            compare(setup.samples(), "posix_spawn of `true`", ours, bare_true).await
        }
        Err(why) => Err(why),
    };
    Row::compared(name, measured, Bar::RatioAnd(1.5, 5.0))
}

/// A detached sandbox with a supervisor of its own, which ends soon after it.
struct Stay {
    cli: PathBuf,
    folder: PathBuf,
    id: String,
}

impl Stay {
    fn begin(setup: &Setup) -> Measured<Self> {
        let folder = std::env::temp_dir().join(format!("sandboxes-bench-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(text)?;
        let mut stay = Self { cli: setup.cli.clone(), folder, id: String::new() };
        let output = stay.sandboxes().arg("create").output().map_err(text)?;
        stay.id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if stay.id.is_empty() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(stay)
    }

    fn sandboxes(&self) -> Command {
        let mut command = Command::new(&self.cli);
        command.env("CODE_SANDBOXES_RUNTIME_DIR", &self.folder);
        command.env("CODE_SANDBOXES_SUPERVISOR_IDLE", "1");
        command
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        // What cannot be ended ends by itself.
        let _ = self.sandboxes().args(["rm", &self.id]).output();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
