//! `sandboxes stop` and `sandboxes rm`

use serde_json::json;

use super::attach::attach;
use super::list::{self, Found};
use crate::args::EndArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;
use crate::settings;

/// How a sandbox ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its logs can still be read.
    Stop,
    /// Nothing is left of it.
    Remove,
}

/// Ends sandboxes. Each is tried; the first that fails decides the status.
pub(crate) async fn end(args: &EndArgs, how: End, printer: &Printer) -> Result<u8, Problem> {
    let (mut ended, mut failed) = (Vec::new(), None);
    let mut ids = args.ids.clone();
    if args.all || !args.label.is_empty() {
        let labels = settings::labels(&args.label)?;
        let found;
        Found { infos: found, failed } = list::find(&args.provider, &labels, printer).await?;
        // All of an account in the cloud is more than anybody means who does not say so.
        let is_meant = args.provider.provider.is_some() || !labels.is_empty();
        let found = found.into_iter().filter(|info| is_meant || info.variant.is_local());
        ids.extend(found.map(|info| info.id));
    }
    end_each(&ids, how, args, printer, (&mut ended, &mut failed)).await;
    // Those that have ended are told a part at a time, so until there are none.
    while failed.is_none() && how == End::Remove && args.ids.is_empty() {
        let labels = settings::labels(&args.label)?;
        let over = list::ended(&args.provider, &labels).await?;
        if over.is_empty() {
            break;
        }
        let over: Vec<_> = over.into_iter().map(|info| info.id).collect();
        end_each(&over, how, args, printer, (&mut ended, &mut failed)).await;
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
    how: End,
    args: &EndArgs,
    printer: &Printer,
    (ended, failed): (&mut Vec<String>, &mut Option<Problem>),
) {
    for id in ids {
        match end_one(id, how, args).await {
            Ok(id) => ended.push(id),
            Err(problem) if failed.is_none() => *failed = Some(problem),
            Err(problem) => printer.failure(&problem.message(), problem.hint()),
        }
    }
}

async fn end_one(id: &str, how: End, args: &EndArgs) -> Result<String, Problem> {
    let sandbox = attach(id, &args.provider).await?;
    let id = sandbox.id().unwrap_or_default();
    match how {
        End::Stop => sandbox.terminate().await?,
        End::Remove => {
            // In this order, so that nothing runs any more when it is forgotten.
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
