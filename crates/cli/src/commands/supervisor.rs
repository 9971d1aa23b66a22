//! `sandboxes supervisor`

use std::sync::Arc;
use std::time::Duration;

use code_sandboxes::{Error, Health, Layer as _, Registry, Variant, with_flags};
use sandbox_supervisor::{client, server};
use serde_json::{Value, json};

use crate::args::SupervisorArgs;
use crate::error::CliError;
use crate::exit;
use crate::layers;
use crate::printer::{Format, Printer};

/// Runs as the supervisor of this user, starts it in the background, or shows the one that runs.
pub(crate) async fn supervise(args: &SupervisorArgs, printer: &Printer) -> Result<u8, CliError> {
    if args.status {
        return status(printer).await;
    }
    if args.launch {
        server::launch().map_err(|error| CliError::host("starting the supervisor", error))?;
        return Ok(exit::SUCCESS);
    }
    let registry = Registry::new();
    // The supervisor keeps one backend of each variant, so each has one breaker.
    let backends = Arc::new(move |variant: Option<_>| {
        let variant = variant.unwrap_or_else(|| registry.default_variant());
        registry.in_process_backend(variant).map(|backend| layers::breaker().layer(backend))
    });
    let idle = Duration::try_from_secs_f64(args.idle).unwrap_or(Duration::MAX);
    if !server::supervise(backends, idle).await? {
        printer.note("another supervisor is running");
    }
    Ok(exit::SUCCESS)
}

/// Shows the supervisor that runs. Starts none.
async fn status(printer: &Printer) -> Result<u8, CliError> {
    let Some(about) = client::status().await? else {
        match printer.format() {
            Format::Text => printer.note("no supervisor is running; there is no detached sandbox"),
            _ => printer.json(&json!({"running": false})).await?,
        }
        return Ok(exit::SUCCESS);
    };
    let all = Registry::new().variants().into_iter();
    let local = all.filter(|status| status.available && status.variant.is_local());
    let mut variants = Vec::new();
    for variant in local.map(|status| status.variant) {
        if let Some(health) = client::health(variant).await.unwrap_or_else(unusable) {
            variants.push((variant, health));
        }
    }
    if printer.format() != Format::Text {
        let variants: Vec<_> = variants.iter().map(object).collect();
        let (pid, count) = (&about["pid"], &about["sandboxes"]);
        let status = json!({
            "running": true, "pid": pid, "version": about["version"], "sandboxes": count,
            "variants": variants,
        });
        printer.json(&status).await?;
        return Ok(exit::SUCCESS);
    }
    printer.note(&format!("process {}, sandboxes: {}", about["pid"], about["sandboxes"]));
    let headers = ["Variant", "Usable", "Circuit breaker", "Detail"];
    printer.table(&headers, variants.iter().map(row).collect()).await?;
    Ok(exit::SUCCESS)
}

fn unusable(error: Error) -> Option<Health> {
    Some(Health { detail: error.to_string(), ..Health::default() })
}

fn breaker(health: &Health) -> &str {
    let check = health.checks.iter().find(|check| check.name == "circuit breaker");
    check.map_or("", |check| &check.detail)
}

fn row((variant, health): &(Variant, Health)) -> Vec<String> {
    let usable = if health.usable { "yes" } else { "no" };
    let detail = with_flags(&health.detail);
    vec![variant.to_string(), usable.to_owned(), breaker(health).to_owned(), detail]
}

fn object((variant, health): &(Variant, Health)) -> Value {
    json!({
        "variant": variant, "usable": health.usable, "detail": with_flags(&health.detail),
        "breaker": breaker(health),
    })
}
