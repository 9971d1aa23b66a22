//! Tables of Rust: names of variants, backends of the facade, what is forwarded to the supervisor.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::outputs::Outputs;
use crate::descriptor::{Backends, Descriptor, Forwarded, Variant};
use crate::workspace;

const WRITTEN: &str = "//!\n//! Written by `cargo xtask generate` from the manifests of the backends; not to be edited.\n\n";

pub(super) fn write(backends: &Backends, outputs: &mut Outputs) -> Result<(), String> {
    let whole = [
        ("crates/sandbox-core/src/model/variant/well_known.rs", names(backends)),
        ("crates/code-sandboxes/src/registry/backends.rs", registry(backends)),
        ("crates/sandbox-supervisor/src/client/forwarded.rs", forwarded(backends)),
    ];
    for (path, text) in whole {
        outputs.whole(path, formatted(&text)?);
    }
    outputs.part("crates/code-sandboxes/src/lib.rs", "backends", &re_exports(backends))
}

fn names(backends: &Backends) -> String {
    let mut text = format!(
        "//! The variants that this version knows by name.\n{WRITTEN}use super::{{Variant, WellKnown}};\n\nimpl Variant {{\n"
    );
    let variants = backends.variants();
    for variant in &variants {
        let all = std::iter::once(variant.name).chain(variant.aliases.iter().map(|alias| &**alias));
        let _ = writeln!(
            text,
            "/// {}.\npub const {}: Self = Self(&{});",
            variant.description,
            variant.constant(),
            strings(all)
        );
    }
    text.push_str("}\n\n/// Every well-known variant, in the order of the documentation.\npub(super) const TABLE: &[WellKnown] = &[\n");
    for variant in &variants {
        let (name, local) = (variant.constant(), variant.local);
        let _ = writeln!(text, "WellKnown {{ variant: Variant::{name}, is_local: {local} }},");
    }
    text + "];\n"
}

fn registry(backends: &Backends) -> String {
    let variants = backends.variants();
    let mut text = format!(
        "//! Every well-known variant, and the backends of this build.\n{WRITTEN}use std::sync::OnceLock;\n\nuse sandbox_core::Variant;\n\nuse super::Entry;\n\npub(super) static BACKENDS: [Entry; {}] = [\n",
        variants.len()
    );
    for variant in &variants {
        let _ = writeln!(
            text,
            "Entry {{ variant: Variant::{}, description: {:?}, credentials: &[{}], key_page: {:?}, {}, made: OnceLock::new() }},",
            variant.constant(),
            variant.description,
            credentials(variant),
            variant.key_page,
            variant.backend.map_or_else(|| "feature: None, make: None".to_owned(), made)
        );
    }
    text + "];\n"
}

fn made(backend: &Descriptor) -> String {
    let (feature, library, name) = (&backend.feature, backend.library(), &backend.backend);
    format!(
        "feature: Some({feature:?}), #[cfg(feature = {feature:?})]\nmake: Some(|| std::sync::Arc::new({library}::{name}::default())),\n#[cfg(not(feature = {feature:?}))]\nmake: None"
    )
}

fn credentials(variant: &Variant<'_>) -> String {
    let alternatives = variant.credentials.iter();
    let all: Vec<_> = alternatives.map(|all| format!("&{}", strings(all))).collect();
    all.join(", ")
}

fn re_exports(backends: &Backends) -> String {
    let mut modules: Vec<_> = backends
        .built
        .iter()
        .map(|one| {
            let (feature, library) = (&one.feature, one.library());
            let name = feature.replace('-', "_");
            format!("#[cfg(feature = {feature:?})]\npub use {library} as {name};\n")
        })
        .collect();
    modules.sort();
    modules.concat()
}

fn forwarded(backends: &Backends) -> String {
    let mut text = format!(
        "//! Variables of a client that count when the supervisor creates a sandbox.\n{WRITTEN}use sandbox_core::Variant;\n\nuse super::client_env::{{Forwarded, Target}};\n\n/// Variables by variant that supply parts which a request leaves out.\npub(super) const FORWARDED: &[(Variant, &[Forwarded])] = &[\n"
    );
    let variants = backends.variants();
    let built = || variants.iter().filter_map(|one| one.backend.map(|backend| (one, backend)));
    for (variant, backend) in built().filter(|(_, backend)| !backend.forwarded.is_empty()) {
        let rules: Vec<_> = backend.forwarded.iter().map(rule).collect();
        let _ = writeln!(text, "(Variant::{}, &[{}]),", variant.constant(), rules.join(", "));
    }
    text.push_str("];\n\n/// Variables by variant that must be the same in the supervisor.\npub(super) const SAME: &[(Variant, &[&str])] = &[\n");
    for (variant, backend) in built().filter(|(_, backend)| !backend.same_in_supervisor.is_empty())
    {
        let names = strings(&backend.same_in_supervisor);
        let _ = writeln!(text, "(Variant::{}, &{names}),", variant.constant());
    }
    text + "];\n"
}

fn rule(forwarded: &Forwarded) -> String {
    let target = match (&forwarded.option, forwarded.field.as_deref()) {
        (Some(option), _) => format!("Target::Option({option:?})"),
        (None, field) => format!("Target::{}", capitalized(field.unwrap_or_default())),
    };
    format!(
        "Forwarded {{ target: {target}, from: &{}, unless: &{}, is_path: {} }}",
        strings(&forwarded.from),
        strings(&forwarded.unless),
        forwarded.path
    )
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

fn strings<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<_> = texts.into_iter().map(|text| format!("{:?}", text.as_ref())).collect();
    format!("[{}]", texts.join(", "))
}

/// The text as rustfmt has it.
fn formatted(text: &str) -> Result<String, String> {
    let failed = |why: &dyn std::fmt::Display| format!("rustfmt: {why}");
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(workspace::root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    // It reads all of it before it writes.
    let written = rustfmt.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
    let output = rustfmt.wait_with_output().map_err(|error| failed(&error))?;
    match written {
        Some(Ok(())) if output.status.success() => {
            String::from_utf8(output.stdout).map_err(|error| failed(&error))
        }
        _ => Err(failed(&output.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::tests::example;

    #[test]
    fn every_table_has_its_rows() {
        let backends = Backends::read(&example()).unwrap();
        let names = formatted(&names(&backends)).unwrap();
        assert!(names.contains(
            "/// Toys.\n    pub const LOCAL_TOY: Self = Self(&[\"local-toy\", \"toy\"]);"
        ));
        assert!(names.contains("WellKnown { variant: Variant::CLOUDY, is_local: false },"));
        let registry = formatted(&registry(&backends)).unwrap();
        assert!(registry.contains("[Entry; 2]"), "{registry}");
        assert!(registry.contains("backend_toy::ToyBackend::default()"), "{registry}");
        assert!(registry.contains("credentials: &[&[\"A\", \"B\"], &[\"~/.c\"]]"), "{registry}");
        let forwarded = formatted(&forwarded(&backends)).unwrap();
        assert!(forwarded.contains("target: Target::Option(\"shell\")"), "{forwarded}");
        assert!(forwarded.contains("(Variant::LOCAL_TOY, &[\"TOY_HOST\"])"), "{forwarded}");
        assert_eq!(
            re_exports(&backends),
            "#[cfg(feature = \"toy\")]\npub use backend_toy as toy;\n"
        );
    }
}
