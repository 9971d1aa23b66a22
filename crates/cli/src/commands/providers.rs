//! `sandboxes providers`

use code_sandboxes::{Registry, Variant, VariantStatus};
use serde_json::{Map, Value, json};

use super::doctor::{Checkup, check, yes};
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Maximum width of a line of capabilities.
const WIDTH: usize = 100;

/// Lists every variant: whether it is in this build, whether it is usable on this host, and its capabilities.
pub(crate) async fn providers(printer: &Printer) -> Result<u8, CliError> {
    let known = Registry::new().variants();
    let mut checkups = Vec::with_capacity(known.len());
    for status in &known {
        checkups.push(check(status.variant).await);
    }
    match printer.format() {
        Format::Text => {
            let headers = ["Variant", "Aliases", "In this build", "Usable", "Default", "Fix"];
            printer.table(&headers, checkups.iter().map(row).collect()).await?;
            for checkup in &checkups {
                printer.stdout(abilities(checkup).as_bytes()).await?;
            }
        }
        Format::Json | Format::JsonLines => {
            let rows = checkups.iter().zip(&known);
            printer.json(&rows.map(|(checkup, status)| object(checkup, status)).collect()).await?;
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
        checkup.health.fix.clone().unwrap_or_default(),
    ]
}

fn capabilities(variant: Variant) -> Option<Vec<(&'static str, bool)>> {
    Some(Registry::new().backend(variant).ok()?.capabilities().entries())
}

/// Lists the capabilities that a variant has and lacks. Some isolation modes have fewer.
fn abilities(checkup: &Checkup) -> String {
    let variant = checkup.variant;
    let Some(entries) = capabilities(variant) else { return String::new() };
    let names =
        |declared| entries.iter().filter(move |entry| entry.1 == declared).map(|entry| entry.0);
    let has = wrapped(&format!("\n{variant} has:"), names(true));
    has + &wrapped(&format!("{variant} lacks:"), names(false))
}

/// Formats a title, and words below it in lines of at most [`WIDTH`].
fn wrapped<'a>(title: &str, words: impl Iterator<Item = &'a str>) -> String {
    let mut text = title.to_owned();
    let mut column = WIDTH;
    for word in words {
        if column + 1 + word.len() > WIDTH {
            text.push_str("\n ");
            column = 1;
        }
        text.push(' ');
        text.push_str(word);
        column += 1 + word.len();
    }
    text.push('\n');
    text
}

fn object(checkup: &Checkup, status: &VariantStatus) -> Value {
    let capabilities = capabilities(checkup.variant).map(|entries| {
        entries.into_iter().map(|(name, has)| (name.to_owned(), has.into())).collect::<Map<_, _>>()
    });
    json!({
        "variant": checkup.variant,
        "aliases": checkup.variant.names()[1..],
        "description": status.description,
        "credentials": status.credentials,
        "key_page": status.key_page,
        "in_build": checkup.in_build,
        "usable": checkup.health.usable,
        "default": is_default(checkup.variant),
        "detail": checkup.health.detail,
        "fix": checkup.health.fix,
        "capabilities": capabilities,
    })
}
