//! `cargo xtask vectors`: the test vectors of `jupyter-protocol`, made again by the reference implementations.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{output, shown};
use crate::environment::jupyter_environment;
use crate::workspace;

/// Writes those that are the same every time, and says what has changed by that.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    if let Some(other) = arguments.first() {
        return Err(format!("unknown argument {other:?}"));
    }
    let named = std::env::var_os("SANDBOX_TEST_JUPYTER_PYTHON").filter(|path| !path.is_empty());
    let own = || jupyter_environment(&workspace::target().join("test-env/jupyter"));
    let python = named.map(PathBuf::from).or_else(own).ok_or("there is no Python with Jupyter")?;
    let folder = workspace::root().join("crates/jupyter-protocol/vectors");
    if !shown(Command::new(python).arg(folder.join("make_vectors.py"))) {
        return Ok(false);
    }
    let mut git = Command::new("git");
    git.current_dir(&folder).args(["status", "--short", "--", "."]);
    let changed = output(&mut git)?;
    println!("{}", if changed.is_empty() { "nothing has changed" } else { changed.trim_end() });
    Ok(true)
}
