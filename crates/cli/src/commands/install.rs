//! `sandboxes install`

use std::fs;
use std::path::Path;

use code_sandboxes::{Error, ErrorKind, seconds};
use serde_json::json;
use tokio::time::timeout;

use super::target::attach_running;
use crate::args::InstallArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Maximum nesting of requirements files.
const MAX_DEPTH: usize = 8;

/// Installs packages in a sandbox.
pub(crate) async fn install(args: &InstallArgs, printer: &Printer) -> Result<u8, CliError> {
    let mut packages = args.packages.clone();
    for file in &args.requirement {
        read(file, MAX_DEPTH, &mut packages)?;
    }
    let limit = seconds("timeout", args.timeout)?;
    let sandbox = attach_running(&args.id, &args.provider).await?;
    let installing = async {
        match (args.system, args.upgrade) {
            (true, _) => sandbox.install_system_packages(packages.clone()).await,
            (false, true) => sandbox.upgrade_packages(packages.clone()).await,
            (false, false) => sandbox.install_packages(packages.clone()).await,
        }
    };
    let done = timeout(limit, installing).await.unwrap_or_else(|_| {
        let message = format!("packages were not installed within {} seconds", args.timeout);
        Err(Error::new(ErrorKind::Timeout, "start_command", message)
            .with_hint("raise the limit with `--timeout SECONDS`"))
    });
    done?;
    if printer.format() != Format::Text {
        let id = sandbox.id();
        printer.json(&json!({ "id": id, "sandbox_id": id, "installed": packages })).await?;
    }
    Ok(exit::SUCCESS)
}

/// Adds the packages of a requirements file.
fn read(file: &Path, depth: usize, packages: &mut Vec<String>) -> Result<(), CliError> {
    let shown = file.display();
    if depth == 0 {
        let message =
            format!("{shown}: requirements files are nested more than {MAX_DEPTH} levels deep");
        return Err(CliError::usage(message, "put the packages into one file"));
    }
    let text = fs::read_to_string(file).map_err(|error| {
        let message = format!("the requirements in {shown} cannot be read: {error}");
        CliError::usage(message, "name a text file of this host that lists packages")
    })?;
    for line in lines(&text) {
        let nested = ["--requirement=", "--requirement ", "-r"];
        if let Some(name) = nested.iter().find_map(|option| line.strip_prefix(option)) {
            let name = name.trim();
            read(&file.parent().unwrap_or(Path::new("")).join(name), depth - 1, packages)?;
        } else if line.starts_with('-') || line.contains(" --hash") {
            let message = format!("{shown} has `{line}`; the only option allowed is `-r FILE`");
            let hint = "name packages and versions; PIP_INDEX_URL and the configuration of pip select the index";
            return Err(CliError::usage(message, hint));
        } else {
            packages.push(line);
        }
    }
    Ok(())
}

/// Returns the lines without comments and empty lines. A line that ends in a backslash is joined with the next one.
fn lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let without_comment = |line: &str| {
        let line = line.trim();
        if line.starts_with('#') {
            return String::new();
        }
        line.split(" #")
            .next()
            .unwrap_or_default()
            .split("\t#")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    joined.lines().map(without_comment).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("base.txt"), "six\n").unwrap();
        let file = folder.path().join("requirements.txt");
        fs::write(&file, text).unwrap();
        let mut packages = Vec::new();
        read(&file, MAX_DEPTH, &mut packages).map_err(|problem| problem.message())?;
        Ok(packages)
    }

    #[test]
    fn requirements_files_are_read_as_by_pip() {
        let text = "# all\n\nrequests>=2 # comment\r\nrich \\\n  >=13\n-r base.txt\na; python_version < '4'\n";
        let expected = ["requests>=2", "rich    >=13", "six", "a; python_version < '4'"];
        assert_eq!(read_text(text).unwrap(), expected);
    }

    #[test]
    fn other_options_are_refused() {
        for line in
            ["--index-url https://x", "-e .", "a==1 --hash=sha256:00", "-r requirements.txt"]
        {
            assert!(read_text(line).is_err(), "{line}");
        }
        assert!(read_text("--index-url x").unwrap_err().contains("`--index-url x`"));
    }
}
