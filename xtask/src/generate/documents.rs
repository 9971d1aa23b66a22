//! Tables of the documents.

use std::fmt::Write as _;

use super::outputs::Outputs;
use crate::descriptor::{Backends, Descriptor, Variant};
use crate::metadata::Metadata;

pub(super) fn write(
    backends: &Backends,
    metadata: &Metadata,
    outputs: &mut Outputs,
) -> Result<(), String> {
    let defaults = metadata.default_features("code-sandboxes");
    outputs.part("README.md", "variants", &variants(backends, &defaults))?;
    outputs.part("README.md", "documents", &pages(backends))?;
    outputs.part("docs/README.md", "variants", &index(backends))?;
    outputs.part("ARCHITECTURE.md", "variants", &architecture(backends))?;
    outputs.part("docs/providers.md", "capabilities", &super::capabilities::table(backends)?)?;
    outputs.part("docs/cli.md", "credentials", &credentials(backends))?;
    outputs.part("crates/code-sandboxes/README.md", "features", &features(backends, &defaults))
}

fn variants(backends: &Backends, defaults: &[String]) -> String {
    let mut table =
        "| Variant | Aliases | Boundary | In this version |\n|---|---|---|---|\n".to_owned();
    for variant in backends.variants() {
        let page = variant.backend.and_then(|backend| backend.page.as_deref());
        let name = match page {
            Some(page) => format!("[`{}`]({page})", variant.name),
            None => format!("`{}`", variant.name),
        };
        let state = match variant.backend {
            Some(backend) if defaults.contains(&backend.feature) => "yes, the default",
            Some(_) => "yes",
            None => "no",
        };
        let aliases = variant.aliases.iter().map(|alias| format!("`{alias}`")).collect::<Vec<_>>();
        let _ =
            writeln!(table, "| {name} | {} | {} | {state} |", aliases.join(", "), variant.boundary);
    }
    table
}

fn pages(backends: &Backends) -> String {
    let page = |one: &Descriptor| {
        let page = one.page.as_deref()?;
        Some(format!("- [{page}]({page}): `{}`: {}.\n", one.variant, one.description))
    };
    backends.built.iter().filter_map(page).collect()
}

fn index(backends: &Backends) -> String {
    let mut table = "| Variant | Read |\n|---|---|\n".to_owned();
    for backend in &backends.built {
        let Some(page) = backend.page.as_deref() else { continue };
        let page = page.trim_start_matches("docs/");
        let _ = writeln!(table, "| `{}` | [{page}]({page}) |", backend.variant);
    }
    table
}

fn architecture(backends: &Backends) -> String {
    let mut table = "| Variant | Crate | Boundary | Interpreter |\n|---|---|---|---|\n".to_owned();
    for backend in &backends.built {
        let _ = writeln!(
            table,
            "| `{}` | `{}` | {} | {} |",
            backend.variant,
            backend.dependency(),
            backend.boundary,
            backend.interpreter
        );
    }
    table
}

fn credentials(backends: &Backends) -> String {
    let mut table =
        "| Order | Variant | Credentials | Where to get them |\n|---|---|---|---|\n".to_owned();
    let variants = backends.variants();
    let with = variants.iter().filter(|variant| !variant.credentials.is_empty());
    for (number, variant) in with.enumerate() {
        let page = variant.key_page.map(|page| format!("<{page}>")).unwrap_or_default();
        let _ = writeln!(
            table,
            "| {} | `{}` | {} | {page} |",
            number + 1,
            variant.name,
            alternatives(variant)
        );
    }
    if let Some(first) = variants.first() {
        let _ = writeln!(table, "| last | `{}` | none | |", first.name);
    }
    table
}

fn alternatives(variant: &Variant<'_>) -> String {
    let all = |names: &Vec<String>| {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        names.join(" and ")
    };
    variant.credentials.iter().map(all).collect::<Vec<_>>().join(", or ")
}

fn features(backends: &Backends, defaults: &[String]) -> String {
    let mut table = "| Feature | Default | Adds |\n|---|---|---|\n".to_owned();
    for backend in &backends.built {
        let default = if defaults.contains(&backend.feature) { "yes" } else { "no" };
        let _ = writeln!(
            table,
            "| `{}` | {default} | `{}`: {} |",
            backend.feature, backend.variant, backend.description
        );
        for (name, part) in &backend.parts {
            let default = if defaults.contains(name) { "yes" } else { "no" };
            let _ = writeln!(
                table,
                "| `{name}` | {default} | `{}`: {} |",
                backend.variant, part.description
            );
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::tests::example;

    #[test]
    fn tables_have_a_row_for_each_variant() {
        let mut backends = Backends::read(&example()).unwrap();
        assert_eq!(pages(&backends), "");
        backends.built[0].page = Some("docs/toy.md".to_owned());
        assert_eq!(pages(&backends), "- [docs/toy.md](docs/toy.md): `local-toy`: Toys.\n");
        backends.built[0].page = None;
        let defaults = ["toy".to_owned()];
        assert_eq!(
            variants(&backends, &defaults).lines().skip(2).collect::<Vec<_>>(),
            ["| `cloudy` |  | a VM | no |", "| `local-toy` | `toy` | none | yes, the default |"]
        );
        assert_eq!(
            credentials(&backends).lines().nth(2),
            Some("| 1 | `cloudy` | `A` and `B`, or `~/.c` |  |")
        );
        assert_eq!(
            architecture(&backends).lines().nth(2),
            Some("| `local-toy` | `backend-toy` | none | none |")
        );
        assert_eq!(
            features(&backends, &[]).lines().nth(2),
            Some("| `toy` | no | `local-toy`: Toys |")
        );
        assert_eq!(
            features(&backends, &[]).lines().nth(3),
            Some("| `toy-server` | no | `local-toy`: Servers of toys |")
        );
    }
}
