//! Dependencies and features of the workspace, the facade and the command line.

use std::collections::BTreeSet;

use super::outputs::Outputs;
use crate::descriptor::{Backends, Descriptor, PLANNED};
use crate::metadata::Metadata;

const WORKSPACE: &str = "Cargo.toml";
const FACADE: &str = "crates/code-sandboxes/Cargo.toml";
const CLI: &str = "crates/cli/Cargo.toml";
const FACADE_PACKAGE: &str = "code-sandboxes";
const CLI_PACKAGE: &str = "code-sandboxes-cli";

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
    outputs.part(FACADE, "features of backends", &facade(&built, metadata))?;
    let defaults = metadata.default_features(FACADE_PACKAGE);
    let chosen: Vec<_> =
        built.iter().filter(|one| !defaults.contains(&one.feature)).copied().collect();
    outputs.part(CLI, "features of backends", &cli(&chosen, metadata))
}

/// Backends are without their own default features, so that each part is chosen where the program is built.
fn dependency(one: &Descriptor) -> String {
    let (name, package, folder) = (one.dependency(), &one.package, &one.folder);
    format!(
        "{name} = {{ package = {package:?}, path = {folder:?}, version = \"0.1.0\", default-features = false }}\n"
    )
}

fn feature(name: &str, description: &str, needs: &[String]) -> String {
    format!("## {description}.\n{name} = [{}]\n", quoted(needs))
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// The features of backends and of their parts, and `full` for every feature that there is.
fn facade(built: &[&Descriptor], metadata: &Metadata) -> String {
    let lines = built.iter().map(|one| {
        let whole = feature(&one.feature, &one.description, &[format!("dep:{}", one.dependency())]);
        let parts = one.parts.iter().map(|(name, part)| {
            let needs = [one.feature.clone(), format!("{}/{}", one.dependency(), part.feature)];
            feature(name, &part.description, &needs)
        });
        whole + &parts.collect::<String>()
    });
    lines.collect::<String>() + &full(built, metadata, FACADE_PACKAGE, &[])
}

/// The program from source has what most hosts can use, and builds fast; `full` is what people download.
fn cli(chosen: &[&Descriptor], metadata: &Metadata) -> String {
    let from_source = chosen.iter().filter(|one| one.from_source);
    let mut names: Vec<_> = from_source.map(|one| one.feature.clone()).collect();
    names.sort();
    let lines = chosen.iter().map(|one| {
        let of_facade = |name: &str| [format!("{FACADE_PACKAGE}/{name}")];
        let whole = feature(&one.feature, &one.description, &of_facade(&one.feature));
        let parts = one.parts.iter().map(|(name, part)| {
            let needs = [one.feature.clone(), format!("{FACADE_PACKAGE}/{name}")];
            feature(name, &part.description, &needs)
        });
        whole + &parts.collect::<String>()
    });
    let lines: String = lines.collect();
    let full = full(chosen, metadata, CLI_PACKAGE, &[format!("{FACADE_PACKAGE}/full")]);
    format!("default = [{}]\n{lines}{full}", quoted(&names))
}

/// The feature `full`: those of the backends, and all others of the manifest.
fn full(built: &[&Descriptor], metadata: &Metadata, package: &str, more: &[String]) -> String {
    let mut names: BTreeSet<_> = more.iter().cloned().collect();
    for one in built {
        names.insert(one.feature.clone());
        names.extend(one.parts.keys().cloned());
    }
    names.extend(metadata.features(package));
    let names: Vec<_> = names.into_iter().collect();
    let lines: String = names.iter().map(|name| format!("    {name:?},\n")).collect();
    format!("## Everything.\nfull = [\n{lines}]\n")
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
            "backend-toy = { package = \"code-sandboxes-backend-toy\", path = \"crates/backend-toy\", version = \"0.1.0\", default-features = false }\n"
        );
        let metadata = Metadata::default();
        assert_eq!(
            cli(&[toy], &metadata),
            "default = [\"toy\"]\n## Toys.\ntoy = [\"code-sandboxes/toy\"]\n## Servers of toys.\ntoy-server = [\"toy\", \"code-sandboxes/toy-server\"]\n\
             ## Everything.\nfull = [\n    \"code-sandboxes/full\",\n    \"toy\",\n    \"toy-server\",\n]\n"
        );
        let facade = facade(&[toy], &metadata);
        assert!(
            facade.contains("toy = [\"dep:backend-toy\"]\n## Servers of toys.\ntoy-server = [\"toy\", \"backend-toy/server\"]\n"),
            "{facade}"
        );
    }
}
