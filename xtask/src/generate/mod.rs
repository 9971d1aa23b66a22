//! `cargo xtask generate`: writes everything that follows from the manifests of the backends and from the files themselves.

mod capabilities;
mod documents;
mod manifests;
mod map;
mod outputs;
mod rust;

use crate::descriptor::Backends;
use crate::metadata::Metadata;
use outputs::Outputs;

/// Writes all of it, or with `--check` says what is not as it would be written.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    match arguments {
        [] => write(),
        [check] if check == "--check" => check_all(),
        [other, ..] => Err(format!("unknown argument {other:?}")),
    }
}

/// Prints every file that is not as it would be written. Returns true when there is none.
pub(crate) fn check_all() -> Result<bool, String> {
    let outputs = outputs()?;
    let stale = outputs.stale();
    for path in &stale {
        println!("{path}: not what its sources say; run `cargo xtask generate`");
    }
    println!("generate: {}", if stale.is_empty() { "ok" } else { "FAILED" });
    Ok(stale.is_empty())
}

fn write() -> Result<bool, String> {
    // The map has the files that the first pass writes.
    for _ in 0..2 {
        let outputs = outputs()?;
        outputs.write()?;
        for path in outputs.stale() {
            println!("{path}: written");
        }
    }
    check_all()
}

fn outputs() -> Result<Outputs, String> {
    let metadata = Metadata::read()?;
    let backends = Backends::read(&metadata)?;
    let mut outputs = Outputs::default();
    rust::write(&backends, &mut outputs)?;
    manifests::write(&backends, &metadata, &mut outputs)?;
    documents::write(&backends, &metadata, &mut outputs)?;
    map::write(&metadata, &mut outputs)?;
    Ok(outputs)
}
