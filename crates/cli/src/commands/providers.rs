//! `sandboxes providers`

use code_sandboxes::{Registry, Variant, VariantStatus};
use serde_json::{Map, Value, json};

use super::doctor::{Checkup, check, yes};
use crate::args::ProviderArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

/// Maximum width of a line of capabilities: every terminal has that.
const WIDTH: usize = 80;

/// Columns of the table: what users look for first, and the capability that tells it.
const COLUMNS: [(&str, &str); 7] = [
    ("Code", "run_code"),
    ("Commands", "commands"),
    ("Files", "files"),
    ("Packages", "install_python"),
    ("Ports", "expose_port"),
    ("Snapshots", "snapshot"),
    ("Stays", "detached"),
];

/// Lists every variant by what it can do, or one in detail: whether it is in this build and usable on this host, and all of
/// its capabilities.
pub(crate) async fn providers(args: &ProviderArgs, printer: &Printer) -> Result<u8, CliError> {
    let mut known = Registry::new().variants();
    if args.provider.is_some() {
        let chosen = settings::variant(args)?;
        known.retain(|status| status.variant == chosen);
    }
    let mut checkups = Vec::with_capacity(known.len());
    for status in &known {
        checkups.push(check(status.variant).await);
    }
    let rows = checkups.iter().zip(&known);
    match (printer.format(), args.provider.is_some()) {
        (Format::Text, true) => {
            for (checkup, status) in rows {
                printer.stdout(details(checkup, status).as_bytes()).await?;
            }
        }
        (Format::Text, false) => {
            let headers: Vec<_> =
                ["Variant", "Usable"].into_iter().chain(COLUMNS.map(|column| column.0)).collect();
            printer.table(&headers, checkups.iter().map(row).collect()).await?;
            printer.stdout(LEGEND.as_bytes()).await?;
        }
        (Format::Json | Format::JsonLines, _) => {
            printer.json(&rows.map(|(checkup, status)| object(checkup, status)).collect()).await?;
        }
    }
    Ok(exit::SUCCESS)
}

const LEGEND: &str = "\n`sandboxes providers -p NAME` shows all of one, and `sandboxes doctor` what keeps it from\n\
    being usable. Stays: its sandboxes outlive the command that made them.\n";

fn is_default(variant: Variant) -> bool {
    variant == Registry::new().default_variant()
}

fn row(checkup: &Checkup) -> Vec<String> {
    let capabilities = capabilities(checkup.variant);
    let has = |name: &str| match &capabilities {
        None => String::new(),
        Some(entries) if entries.contains(&(name, true)) => "yes".to_owned(),
        Some(_) => "-".to_owned(),
    };
    let usable = match (checkup.in_build, checkup.health.usable) {
        (false, _) => "not built".to_owned(),
        (true, usable) => yes(usable),
    };
    let first = [checkup.variant.to_string(), usable];
    first.into_iter().chain(COLUMNS.map(|(_, name)| has(name))).collect()
}

fn capabilities(variant: Variant) -> Option<Vec<(&'static str, bool)>> {
    Some(Registry::new().backend(variant).ok()?.capabilities().entries())
}

/// Describes one variant: what it is, whether it is usable, and the capabilities that it has and lacks. Some isolation modes
/// have fewer.
fn details(checkup: &Checkup, status: &VariantStatus) -> String {
    let variant = checkup.variant;
    let mut text = format!("{variant}: {}\n", status.description);
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            text.push_str(&format!("{name:<11}{value}\n"));
        }
    };
    line("aliases", &variant.names()[1..].join(", "));
    line("default", if is_default(variant) { "yes" } else { "" });
    line("in build", &yes(checkup.in_build));
    line("usable", &yes(checkup.health.usable));
    line("because", &checkup.health.detail);
    line("fix", checkup.health.fix.as_deref().unwrap_or_default());
    let keys: Vec<_> = status.credentials.iter().map(|all| all.join(" and ")).collect();
    line("key", &keys.join(", or "));
    line("key page", status.key_page.unwrap_or_default());
    text + &abilities(variant)
}

/// Lists the capabilities that a variant has and lacks.
fn abilities(variant: Variant) -> String {
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
