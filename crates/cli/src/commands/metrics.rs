//! `sandboxes metrics`

use code_sandboxes::ByteSize;
use serde_json::{Value, json};

use super::run::name_sandbox;
use super::target::{attach_running, check_capability};
use crate::args::SandboxesArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Prints the resource usage of sandboxes. The first failure ends the command.
pub(crate) async fn metrics(args: &SandboxesArgs, printer: &Printer) -> Result<u8, CliError> {
    let mut all = Vec::new();
    for id in &args.ids {
        let sandbox = attach_running(id, &args.provider).await?;
        check_capability(&sandbox, "metrics", |can| can.metrics)?;
        let metrics = sandbox.metrics().await?;
        all.push((sandbox.id(), metrics));
    }
    if printer.format() == Format::Text {
        let headers = ["Sandbox", "CPU", "Memory", "Disk", "Processes"];
        let row = |(id, metrics): (String, code_sandboxes::Metrics)| {
            vec![
                id,
                format!("{:.2} s", metrics.cpu_time),
                ByteSize::bytes(metrics.memory).to_string(),
                ByteSize::bytes(metrics.disk).to_string(),
                metrics.processes.to_string(),
            ]
        };
        printer.table(&headers, all.into_iter().map(row).collect()).await?;
    } else {
        let objects: Vec<Value> = all
            .into_iter()
            .map(|(id, metrics)| {
                let mut shown = json!(metrics);
                name_sandbox(&mut shown, Some(&id));
                shown
            })
            .collect();
        printer.json(&json!(objects)).await?;
    }
    Ok(exit::SUCCESS)
}
