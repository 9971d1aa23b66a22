//! `sandboxes doctor`, and the health of variants for other commands.

use code_sandboxes::{CallContext, Check, Health, Registry, Variant, with_flags};
use serde_json::{Value, json};

use crate::args::ProviderArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

/// The health of a variant.
#[derive(Debug)]
pub(crate) struct Checkup {
    /// The variant.
    pub(crate) variant: Variant,
    /// True when this build has it.
    pub(crate) in_build: bool,
    /// Its health: usable, or the reason why not.
    pub(crate) health: Health,
}

/// Checks one variant.
pub(crate) async fn check(variant: Variant) -> Checkup {
    let (in_build, mut health) = match Registry::new().backend(variant) {
        Err(error) => (false, unusable(&error)),
        Ok(backend) => {
            let health = backend.health(&CallContext::new()).await;
            (true, health.unwrap_or_else(|error| unusable(&error)))
        }
    };
    let has_key = health.checks.iter().any(|check| check.name == "credentials" && check.ok);
    if in_build && !health.usable && !has_key {
        health.checks.extend(missing_keys(variant));
    }
    let fixes = health.checks.iter_mut().map(|check| &mut check.fix).chain([&mut health.fix]);
    for fix in fixes.flatten() {
        *fix = with_flags(fix);
    }
    Checkup { variant, in_build, health }
}

/// Returns a failed check for each key of a variant that is missing, with the page where keys are had.
fn missing_keys(variant: Variant) -> Vec<Check> {
    let known = Registry::new().variants().into_iter().find(|status| status.variant == variant);
    let Some(status) = known.filter(|status| !status.has_credentials()) else { return Vec::new() };
    let missing = status.missing_credentials();
    let others =
        status.credentials.iter().filter(|all| !missing.iter().all(|one| all.contains(one)));
    let others: String = others.map(|all| format!(", or give {}", all.join(" and "))).collect();
    let page = status.key_page.map(|page| format!(" (see {page})")).unwrap_or_default();
    let check = |name: &&str| {
        let what = if name.starts_with("~/") { "write the file" } else { "set the variable" };
        let fix = Some(format!("{what}{page}{others}"));
        Check { name: (*name).to_owned(), ok: false, detail: "missing".to_owned(), fix }
    };
    missing.iter().map(check).collect()
}

fn unusable(error: &code_sandboxes::Error) -> Health {
    Health {
        usable: false,
        detail: error.to_string(),
        fix: error.hint().map(str::to_owned),
        checks: Vec::new(),
    }
}

/// Checks every variant, or the named one. The exit status is about the named variant, or the default one.
pub(crate) async fn doctor(args: &ProviderArgs, printer: &Printer) -> Result<u8, CliError> {
    let selected = settings::variant(args)?;
    let variants = match args.provider {
        Some(_) => vec![selected],
        None => Variant::well_known(),
    };
    let mut checkups = Vec::with_capacity(variants.len());
    for variant in variants {
        checkups.push(check(variant).await);
    }
    let chosen = checkups.iter().find(|checkup| checkup.variant == selected);
    let usable = chosen.is_some_and(|checkup| checkup.health.usable);
    match printer.format() {
        Format::Text => {
            printer.table(&["Variant", "Usable", "Detail", "Fix"], rows(&checkups)).await?;
            let checks = chosen.map(check_rows).unwrap_or_default();
            if !checks.is_empty() {
                printer.stdout(format!("\nChecks of {selected}:\n").as_bytes()).await?;
                printer.table(&["Check", "Fine", "Detail", "Fix"], checks).await?;
            }
        }
        Format::Json | Format::JsonLines => {
            let variants: Value = checkups.iter().map(object).collect();
            let all = json!({"selected": selected, "usable": usable, "variants": variants});
            printer.json(&all).await?;
        }
    }
    Ok(if usable { exit::SUCCESS } else { exit::FAILED })
}

/// Returns `yes` or `no`.
pub(crate) fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.into()
}

fn rows(checkups: &[Checkup]) -> Vec<Vec<String>> {
    let row = |Checkup { variant, health, .. }: &Checkup| {
        let fix = health.fix.clone().unwrap_or_default();
        vec![variant.to_string(), yes(health.usable), health.detail.clone(), fix]
    };
    checkups.iter().map(row).collect()
}

fn check_rows(checkup: &Checkup) -> Vec<Vec<String>> {
    let row = |check: &Check| {
        let fix = check.fix.clone().unwrap_or_default();
        vec![check.name.clone(), yes(check.ok), check.detail.clone(), fix]
    };
    checkup.health.checks.iter().map(row).collect()
}

fn object(checkup: &Checkup) -> Value {
    let mut object = json!(checkup.health);
    object["variant"] = json!(checkup.variant);
    object["in_build"] = json!(checkup.in_build);
    object
}
