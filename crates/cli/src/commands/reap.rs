//! `sandboxes reap`

use code_sandboxes::{Error, Overdue, Reaped, Registry, Variant, reap as reap_variant};
use serde_json::{Value, json};

use crate::args::ReapArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

/// Ends the sandboxes of clouds that nothing owns any more. Local sandboxes end with their owner, whatever happens to it.
pub(crate) async fn reap(args: &ReapArgs, printer: &Printer) -> Result<u8, CliError> {
    let variants = match &args.provider.provider {
        Some(_) => vec![settings::variant(&args.provider)?],
        None => Registry::new().with_credentials(),
    };
    let (mut all, mut failed): (Vec<Reaped>, Vec<(Variant, Error)>) = Default::default();
    for variant in variants.into_iter().filter(|variant| !variant.is_local()) {
        match reap_variant(variant, !args.dry_run).await {
            Ok(found) => all.extend(found),
            Err(error) => failed.push((variant, error)),
        }
    }
    let is_whole = failed.is_empty() && all.iter().all(|one| !matches!(one.ended, Some(Err(_))));
    if printer.format() == Format::Text {
        if all.is_empty() && failed.is_empty() {
            printer.note("no sandbox is without an owner");
        } else if !all.is_empty() {
            printer.table(&["Sandbox", "Reason", "Ended"], all.iter().map(row).collect()).await?;
        }
        for (variant, error) in &failed {
            printer.failure(&format!("{variant}: {error}"), error.hint());
        }
    } else {
        let errors: Vec<_> = failed
            .iter()
            .map(|(variant, error)| json!({"variant": variant, "error": error.to_string()}))
            .collect();
        let sandboxes: Vec<_> = all.iter().map(object).collect();
        printer.json(&json!({"sandboxes": sandboxes, "errors": errors})).await?;
    }
    Ok(if is_whole { exit::SUCCESS } else { exit::FAILED })
}

fn reason(one: &Reaped) -> &'static str {
    match one.reason {
        Overdue::OwnerGone => "its process is gone",
        _ => "its end has passed",
    }
}

fn row(one: &Reaped) -> Vec<String> {
    let ended = match &one.ended {
        None => "no".to_owned(),
        Some(Ok(())) => "yes".to_owned(),
        Some(Err(error)) => error.to_string(),
    };
    vec![one.info.id.clone(), reason(one).to_owned(), ended]
}

fn object(one: &Reaped) -> Value {
    let problem = match &one.ended {
        Some(Err(error)) => Some(error.to_string()),
        _ => None,
    };
    json!({
        "id": one.info.id, "reason": reason(one),
        "ended": matches!(one.ended, Some(Ok(()))), "problem": problem,
    })
}
