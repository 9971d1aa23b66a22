//! `sandboxes metrics`

use code_sandboxes::ByteSize;
use serde_json::{Value, json};

use super::able;
use super::attach::attach_running;
use super::run::name_sandbox;
use crate::args::SandboxesArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// What sandboxes use now. The first that cannot be asked ends it.
pub(crate) async fn metrics(args: &SandboxesArgs, printer: &Printer) -> Result<u8, Problem> {
    let mut asked = Vec::new();
    for id in &args.ids {
        let sandbox = attach_running(id, &args.provider).await?;
        able::check(&sandbox, "metrics", |can| can.metrics)?;
        let metrics = sandbox.metrics().await?;
        asked.push((sandbox.id().unwrap_or_default(), metrics));
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
        printer.table(&headers, asked.into_iter().map(row).collect()).await?;
    } else {
        let all: Vec<Value> = asked
            .into_iter()
            .map(|(id, metrics)| {
                let mut shown = json!(metrics);
                name_sandbox(&mut shown, Some(&id));
                shown
            })
            .collect();
        printer.json(&json!(all)).await?;
    }
    Ok(exit::SUCCESS)
}
