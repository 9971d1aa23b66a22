//! `sandboxes ls`

use code_sandboxes::{
    Error, ErrorKind, Registry, Sandbox, SandboxInfo, Tags, detached, lacks_credentials, unix_now,
};
use sandbox_supervisor::client::is_connect_error;
use serde_json::{Value, json};

use super::run::name_sandbox;
use crate::args::{ListArgs, ProviderArgs};
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

/// Lists running sandboxes, and with --all also ended ones whose logs still exist.
pub(crate) async fn list(args: &ListArgs, printer: &Printer) -> Result<u8, CliError> {
    let labels = settings::labels(&args.label)?;
    let Found { mut infos, failed } = find(&args.provider, &labels, printer).await?;
    if args.all && failed.is_none() {
        infos.extend(ended(&args.provider, &labels).await?);
        infos.sort_by(|a, b| a.created_at.total_cmp(&b.created_at));
    }
    // After a failure the sandboxes found are shown, but an empty list would be misleading.
    if let Some(problem) = failed {
        if printer.format() == Format::Text && !infos.is_empty() {
            show(&infos, printer).await?;
        }
        return Err(problem);
    }
    show(&infos, printer).await?;
    Ok(exit::SUCCESS)
}

async fn show(found: &[SandboxInfo], printer: &Printer) -> Result<(), CliError> {
    match printer.format() {
        Format::Text => {
            let headers = ["ID", "Name", "Status", "Isolation", "Age", "Left", "Labels"];
            printer.table(&headers, found.iter().map(row).collect()).await?;
        }
        Format::Json | Format::JsonLines => {
            let objects: Vec<_> = found.iter().map(object).collect();
            printer.json(&json!(objects)).await?;
        }
    }
    Ok(())
}

/// Sandboxes that were found, and the first failure of a variant.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) infos: Vec<SandboxInfo>,
    pub(crate) failed: Option<CliError>,
}

/// Finds the sandboxes with these labels, the oldest first.
///
/// A variant that fails is skipped, unless it is the named one.
pub(crate) async fn find(
    provider: &ProviderArgs,
    labels: &Tags,
    printer: &Printer,
) -> Result<Found, CliError> {
    let Found { infos: mut found, mut failed } = Found::default();
    if provider.provider.is_some() {
        found = Sandbox::list_variant(settings::variant(provider)?).await?;
    } else {
        for status in Registry::new().variants().into_iter().filter(|status| status.available) {
            match Sandbox::list_variant(status.variant).await {
                Ok(infos) => found.extend(infos),
                Err(error) if lacks_credentials(&error) => {}
                Err(error) if failed.is_none() => failed = Some(CliError::from(error)),
                // All variants need the same supervisor.
                Err(error) if is_connect_error(&error) && is_reported(&failed) => {}
                Err(error) => {
                    printer.warning(&format!("{} is skipped: {error}", status.variant));
                }
            }
        }
    }
    found.retain(|info| has_labels(info, labels));
    found.sort_by(|a, b| a.created_at.total_cmp(&b.created_at));
    Ok(Found { infos: found, failed })
}

fn is_reported(failed: &Option<CliError>) -> bool {
    matches!(failed, Some(CliError::Sandbox(first)) if is_connect_error(first))
}

fn has_labels(info: &SandboxInfo, labels: &Tags) -> bool {
    labels.iter().all(|(key, value)| info.tags.get(key) == Some(value))
}

/// Lists the ended sandboxes that the supervisor still has.
pub(crate) async fn ended(
    provider: &ProviderArgs,
    labels: &Tags,
) -> Result<Vec<SandboxInfo>, CliError> {
    let variant = provider.provider.as_ref().map(|_| settings::variant(provider)).transpose()?;
    let Some(mut about) = detached::status().await? else { return Ok(Vec::new()) };
    // A supervisor of an older version does not report them.
    let listed = about.remove("ended").unwrap_or_else(|| json!([]));
    let mut ended: Vec<SandboxInfo> = serde_json::from_value(listed).map_err(|error| {
        Error::new(
            ErrorKind::Protocol,
            "list",
            "the supervisor's list of ended sandboxes is malformed",
        )
        .with_source(error)
    })?;
    ended.retain(|info| has_labels(info, labels) && variant.is_none_or(|v| v == info.variant));
    Ok(ended)
}

/// Returns the JSON object of a sandbox, with aliases of fields as other sandbox tools name them.
pub(crate) fn object(info: &SandboxInfo) -> Value {
    let mut object = json!(info);
    name_sandbox(&mut object, Some(&info.id));
    object["provider"] = info.variant.as_str().into();
    object["state"] = info.status.as_str().into();
    object["labels"] = json!(info.tags);
    object
}

fn row(info: &SandboxInfo) -> Vec<String> {
    let labels: Vec<_> = info.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    vec![
        info.id.clone(),
        info.name.clone().unwrap_or_else(|| "-".into()),
        info.status.as_str().into(),
        info.isolation.as_ref().map_or("-", |isolation| isolation.mode.as_str()).into(),
        span(unix_now() - info.created_at),
        info.remaining_time()
            .filter(|_| !info.status.is_over())
            .map_or_else(|| "-".into(), |left| span(left.as_secs_f64())),
        if labels.is_empty() { "-".into() } else { labels.join(",") },
    ]
}

/// Formats a time in its largest unit.
pub(crate) fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    let (value, unit) = match seconds {
        s if s < 120.0 => (s, "s"),
        s if s < 7200.0 => (s / 60.0, "m"),
        s if s < 172_800.0 => (s / 3600.0, "h"),
        s => (s / 86_400.0, "d"),
    };
    format!("{value:.0}{unit}")
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn times_have_one_unit() {
        for (seconds, text) in
            [(-1.0, "0s"), (59.0, "59s"), (3600.0, "60m"), (86_400.0, "24h"), (864_000.0, "10d")]
        {
            assert_eq!(span(seconds), text);
        }
    }
}
