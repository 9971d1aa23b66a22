//! `sandboxes stop` and `sandboxes rm`

use serde_json::json;

use super::list::{self, Found};
use super::target::attach;
use crate::args::EndArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

/// The mode of ending a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopMode {
    /// Keep its logs.
    Stop,
    /// Remove it and its logs.
    Remove,
}

/// Ends sandboxes. All are tried; the first failure decides the exit status.
pub(crate) async fn stop(args: &EndArgs, how: StopMode, printer: &Printer) -> Result<u8, CliError> {
    let (mut ended, mut failed) = (Vec::new(), None);
    let mut ids = args.ids.clone();
    if args.all || !args.label.is_empty() {
        let labels = settings::labels(&args.label)?;
        let found;
        Found { infos: found, failed } = list::find(&args.provider, &labels, printer).await?;
        // `--all` without a variant or a label does not include the sandboxes of cloud accounts.
        let with_cloud = args.provider.provider.is_some() || !labels.is_empty();
        let found = found.into_iter().filter(|info| with_cloud || info.variant.is_local());
        ids.extend(found.map(|info| info.id));
    }
    end_each(&ids, how, args, printer, (&mut ended, &mut failed)).await;
    // Ended sandboxes are listed in parts, so repeat until there are none.
    while failed.is_none() && how == StopMode::Remove && args.ids.is_empty() {
        let labels = settings::labels(&args.label)?;
        let listed = list::ended(&args.provider, &labels).await?;
        if listed.is_empty() {
            break;
        }
        let listed: Vec<_> = listed.into_iter().map(|info| info.id).collect();
        end_each(&listed, how, args, printer, (&mut ended, &mut failed)).await;
    }
    if let Some(problem) = failed {
        return Err(problem);
    }
    if printer.format() != Format::Text {
        printer.json(&json!({ "ended": ended })).await?;
    }
    Ok(exit::SUCCESS)
}

async fn end_each(
    ids: &[String],
    how: StopMode,
    args: &EndArgs,
    printer: &Printer,
    (ended, failed): (&mut Vec<String>, &mut Option<CliError>),
) {
    for id in ids {
        match end_one(id, how, args).await {
            Ok(id) => ended.push(id),
            Err(problem) if failed.is_none() => *failed = Some(problem),
            Err(problem) => printer.failure(&problem.message(), problem.hint()),
        }
    }
}

async fn end_one(id: &str, how: StopMode, args: &EndArgs) -> Result<String, CliError> {
    let sandbox = attach(id, &args.provider).await?;
    let id = sandbox.id();
    match how {
        StopMode::Stop => sandbox.terminate().await?,
        StopMode::Remove => {
            // Ended first, so that nothing runs any more when the sandbox is removed.
            sandbox
                .instance("terminate")?
                .life()
                .terminate(&code_sandboxes::CallContext::new())
                .await?;
            sandbox.kill().await?;
        }
    }
    Ok(id)
}
