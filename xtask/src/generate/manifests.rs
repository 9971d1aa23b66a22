//! Dependencies and features of the workspace, the facade and the command line.

use super::outputs::Outputs;
use crate::descriptor::{Backends, Descriptor, PLANNED};
use crate::metadata::Metadata;

const WORKSPACE: &str = "Cargo.toml";
const FACADE: &str = "crates/code-sandboxes/Cargo.toml";
const CLI: &str = "crates/cli/Cargo.toml";

pub(super) fn write(
    backends: &Backends,
    metadata: &Metadata,
    outputs: &mut Outputs,
) -> Result<(), String> {
    let mut built: Vec<_> = backends.built.iter().collect();
    built.sort_by_key(|one| &one.folder);
    let lines = |line: &dyn Fn(&Descriptor) -> String| -> String {
        built.iter().map(|one| line(one)).collect()
    };
    outputs.part(WORKSPACE, "backends", &lines(&dependency))?;
    outputs.change(WORKSPACE, |text| Ok(without_built(text, backends)))?;
    outputs.part(
        FACADE,
        "backends",
        &lines(&|one| format!("{} = {{ workspace = true, optional = true }}\n", one.dependency())),
    )?;
    outputs.part(
        FACADE,
        "features of backends",
        &lines(&|one| feature(one, &format!("dep:{}", one.dependency()))),
    )?;
    let defaults = metadata.default_features("code-sandboxes");
    let chosen: Vec<_> =
        built.iter().filter(|one| !defaults.contains(&one.feature)).copied().collect();
    outputs.part(CLI, "features of backends", &cli(&chosen))
}

fn dependency(one: &Descriptor) -> String {
    let (name, package, folder) = (one.dependency(), &one.package, &one.folder);
    format!("{name} = {{ package = {package:?}, path = {folder:?}, version = \"0.1.0\" }}\n")
}

fn feature(one: &Descriptor, needs: &str) -> String {
    format!("## {}.\n{} = [{needs:?}]\n", one.description, one.feature)
}

/// The program has every backend unless it is built without.
fn cli(chosen: &[&Descriptor]) -> String {
    let mut names: Vec<_> = chosen.iter().map(|one| format!("{:?}", one.feature)).collect();
    names.sort();
    let features =
        chosen.iter().map(|one| feature(one, &format!("code-sandboxes/{}", one.feature)));
    format!("default = [{}]\n{}", names.join(", "), features.collect::<String>())
}

/// The manifest without the planned variants that have a crate now.
fn without_built(manifest: &str, backends: &Backends) -> String {
    let mut is_planned = false;
    let lines = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            is_planned = *line == format!("[workspace.metadata.{PLANNED}]");
        }
        let name = line.split('=').next().unwrap_or_default().trim();
        !(is_planned && backends.built.iter().any(|one| one.variant == name))
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::tests::example;

    #[test]
    fn a_planned_variant_leaves_when_its_crate_comes() {
        let backends = Backends::read(&example()).unwrap();
        let manifest = "[workspace.metadata.planned-backends]\ncloudy = { order = 10 }\nlocal-toy = { order = 1 }\n\n[x]\nlocal-toy = 1\n";
        assert_eq!(
            without_built(manifest, &backends),
            manifest.replace("local-toy = { order = 1 }\n", "")
        );
    }

    #[test]
    fn manifests_have_a_line_for_each_backend() {
        let backends = Backends::read(&example()).unwrap();
        let toy = &backends.built[0];
        assert_eq!(
            dependency(toy),
            "backend-toy = { package = \"code-sandboxes-backend-toy\", path = \"crates/backend-toy\", version = \"0.1.0\" }\n"
        );
        assert_eq!(cli(&[toy]), "default = [\"toy\"]\n## Toys.\ntoy = [\"code-sandboxes/toy\"]\n");
    }
}
