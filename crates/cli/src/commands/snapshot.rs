//! `sandboxes snapshot`

use code_sandboxes::{ByteSize, CallContext, Sandbox, SnapshotInfo, unix_now};
use serde_json::json;

use super::list::span;
use super::target::attach_running;
use crate::args::{ProviderArgs, SnapshotArgs, SnapshotCommand};
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

/// Creates, lists, deletes and restores snapshots.
pub(crate) async fn snapshot(args: &SnapshotArgs, printer: &Printer) -> Result<u8, CliError> {
    match &args.command {
        SnapshotCommand::Create { id, name, description, provider } => {
            let instance = attach_running(id, provider).await?.instance("create_snapshot")?;
            let taken = instance
                .snapshots()?
                .create_snapshot(&CallContext::new(), name, description)
                .await?;
            for what in &taken.left_out {
                printer.note(&format!("not in the snapshot: {what}"));
            }
            print_snapshot(&taken, printer).await?;
        }
        SnapshotCommand::Restore { id, name, provider } => {
            let restored = attach_running(id, provider).await?.restore_snapshot(name).await?;
            for what in &restored.left_out {
                printer.note(&format!("not restored: {what}"));
            }
            if restored.contexts.is_empty() {
                printer.note("files were restored; interpreters start empty");
            }
            print_snapshot(&restored, printer).await?;
        }
        SnapshotCommand::List { provider } => list(provider, printer).await?,
        SnapshotCommand::Rm { names, provider } => remove(names, provider, printer).await?,
    }
    Ok(exit::SUCCESS)
}

async fn print_snapshot(info: &SnapshotInfo, printer: &Printer) -> Result<(), CliError> {
    match printer.format() {
        Format::Text => printer.stdout(format!("{}\n", info.name).as_bytes()).await,
        Format::Json | Format::JsonLines => printer.json(&json!(info)).await,
    }
}

async fn list(provider: &ProviderArgs, printer: &Printer) -> Result<(), CliError> {
    let all = Sandbox::list_snapshots(settings::variant(provider)?).await?;
    match printer.format() {
        Format::Text => {
            let headers =
                ["Name", "Size", "Age", "Variables", "Interpreters", "Sandbox", "Description"];
            printer.table(&headers, all.iter().map(row).collect()).await
        }
        Format::Json | Format::JsonLines => printer.json(&json!(all)).await,
    }
}

fn row(info: &SnapshotInfo) -> Vec<String> {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    vec![
        info.name.clone(),
        // Modal does not say how large one is.
        if info.size == 0 { "-".to_owned() } else { ByteSize::bytes(info.size).to_string() },
        span(unix_now() - info.created_at),
        or_dash(&info.variables.join(",")),
        or_dash(&info.contexts.join(",")),
        info.sandbox_id.clone(),
        or_dash(&info.description),
    ]
}

/// Deletes snapshots. All are tried; the first failure decides the exit status.
async fn remove(
    names: &[String],
    provider: &ProviderArgs,
    printer: &Printer,
) -> Result<(), CliError> {
    let variant = settings::variant(provider)?;
    let (mut deleted, mut failed) = (Vec::new(), None);
    for name in names {
        match Sandbox::delete_snapshot(variant, name).await {
            Ok(()) => deleted.push(name),
            Err(error) if failed.is_none() => failed = Some(CliError::from(error)),
            Err(error) => printer.failure(&error.to_string(), error.hint()),
        }
    }
    if let Some(problem) = failed {
        return Err(problem);
    }
    if printer.format() != Format::Text {
        printer.json(&json!({ "deleted": deleted })).await?;
    }
    Ok(())
}
