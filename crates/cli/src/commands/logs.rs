//! `sandboxes logs`

use code_sandboxes::CallContext;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::target::attach;
use crate::args::LogsArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Prints the log of a sandbox. As JSON, each line is an object.
pub(crate) async fn logs(args: &LogsArgs, printer: &Printer) -> Result<u8, CliError> {
    let sandbox = attach(&args.id, &args.provider).await?;
    let instance = sandbox.instance("logs")?;
    let mut lines = instance.life().logs(&CallContext::new(), args.follow).await?;
    while let Some(line) = lines.next().await {
        let mut line = line?;
        if printer.format() != Format::Text {
            line = object(&line).to_string();
        }
        printer.record(line).await?;
    }
    Ok(exit::SUCCESS)
}

/// Parses a line: time, run, type and text.
fn object(line: &str) -> Value {
    let mut parts = line.splitn(4, ' ');
    let (time, run, kind) = (parts.next(), parts.next(), parts.next());
    match (time, run.and_then(|run| run.parse::<u64>().ok()), kind) {
        (Some(time), Some(run), Some(kind)) => {
            json!({"time": time, "run": run, "type": kind, "text": parts.next().unwrap_or("")})
        }
        _ => json!({ "text": line }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_parts() {
        let line = object("2026-01-02T03:04:05.678Z 3 stdout a  b");
        assert_eq!((line["run"].as_u64(), line["text"].as_str()), (Some(3), Some("a  b")));
        assert_eq!(
            object("12 earlier lines are not kept")["text"],
            "12 earlier lines are not kept"
        );
    }
}
