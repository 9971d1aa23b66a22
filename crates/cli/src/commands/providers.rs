//! `sandboxes providers`

use code_sandboxes::{Registry, Variant};
use serde_json::{Map, Value, json};

use super::doctor::{Checkup, check, yes};
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// Lists every variant: whether this build has it, and whether it is usable here.
pub(crate) async fn providers(printer: &Printer) -> Result<u8, Problem> {
    let mut checkups = Vec::new();
    for variant in Variant::ALL {
        checkups.push(check(variant).await);
    }
    match printer.format() {
        Format::Text => {
            let headers = ["Variant", "Aliases", "In this build", "Usable", "Default"];
            printer.table(&headers, checkups.iter().map(row).collect()).await?;
        }
        Format::Json | Format::JsonLines => {
            printer.json(&checkups.iter().map(object).collect()).await?;
        }
    }
    Ok(exit::SUCCESS)
}

fn is_default(variant: Variant) -> bool {
    variant == Registry::new().default_variant()
}

fn row(checkup: &Checkup) -> Vec<String> {
    let variant = checkup.variant;
    vec![
        variant.to_string(),
        variant.names()[1..].join(", "),
        yes(checkup.in_build),
        yes(checkup.health.usable),
        if is_default(variant) { "yes".into() } else { String::new() },
    ]
}

fn object(checkup: &Checkup) -> Value {
    let backend = Registry::new().backend(checkup.variant);
    let capabilities = backend.map(|backend| {
        let entries = backend.capabilities().entries();
        entries.into_iter().map(|(name, has)| (name.to_owned(), has.into())).collect::<Map<_, _>>()
    });
    json!({
        "variant": checkup.variant,
        "aliases": checkup.variant.names()[1..],
        "in_build": checkup.in_build,
        "usable": checkup.health.usable,
        "default": is_default(checkup.variant),
        "detail": checkup.health.detail,
        "fix": checkup.health.fix,
        "capabilities": capabilities.ok(),
    })
}
