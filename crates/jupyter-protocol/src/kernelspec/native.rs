//! IPython's kernel, which Jupyter offers even if its specification is not installed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{InstalledKernel, KernelSpec, PythonEnvironment};

/// The name of IPython's kernel.
pub(super) const NAME: &str = "python3";

/// Returns the kernel of a Python environment that has the package `ipykernel`.
pub(super) fn kernel(python: &PythonEnvironment) -> Option<InstalledKernel> {
    let package = python.package("ipykernel")?;
    let executable = python.executable.to_str()?;
    let spec = KernelSpec {
        argv: ["-m", "ipykernel_launcher", "-f", "{connection_file}"].into_iter().fold(
            vec![executable.to_owned()],
            |mut argv, word| {
                argv.push(word.to_owned());
                argv
            },
        ),
        display_name: format!("Python {} (ipykernel)", python.version.0),
        language: "python".to_owned(),
        metadata: metadata(&package),
        kernel_protocol_version: protocol_version(&package),
        ..KernelSpec::default()
    };
    let python = Some(python.clone());
    Some(InstalledKernel { name: NAME.to_owned(), resource_dir: resources(&package), spec, python })
}

fn resources(package: &Path) -> PathBuf {
    package.join("resources")
}

/// Returns the source of the module that creates the specification. The result depends on the version of the package.
fn source(package: &Path) -> String {
    fs::read_to_string(package.join("kernelspec.py")).unwrap_or_default()
}

fn metadata(package: &Path) -> crate::json::JsonMap {
    let source = source(package);
    let known = [("debugger", json!(true)), ("supported_encryption", json!(["curve"]))];
    let found = known.into_iter().filter(|(key, _)| source.contains(&format!("\"{key}\":")));
    found.map(|(key, value): (&str, Value)| (key.to_owned(), value)).collect()
}

fn protocol_version(package: &Path) -> String {
    let source = source(package);
    let after = source.split("\"kernel_protocol_version\": \"").nth(1);
    after.and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
}
