//! `sandboxes metrics`

use code_sandboxes::{ByteSize, Cost, Metrics};
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
        let cost = sandbox.info().cost();
        // A provider may tell the price and nothing else.
        let metrics = match cost {
            Some(_) if !sandbox.capabilities().metrics => None,
            _ => {
                check_capability(&sandbox, "metrics", |can| can.metrics)?;
                Some(sandbox.metrics().await?)
            }
        };
        all.push((sandbox.id(), metrics, cost));
    }
    if printer.format() == Format::Text {
        let headers = ["Sandbox", "CPU", "Memory", "Disk", "Processes", "Credits"];
        // The column is there where a provider tells the price.
        let columns = if all.iter().any(|(_, _, cost)| cost.is_some()) { 6 } else { 5 };
        let rows = all.into_iter().map(|one| row(one).into_iter().take(columns).collect());
        printer.table(&headers[..columns], rows.collect()).await?;
    } else {
        let objects: Vec<Value> = all
            .into_iter()
            .map(|(id, metrics, cost)| {
                let mut shown = metrics.map_or_else(|| json!({}), |metrics| json!(metrics));
                if let Some(cost) = cost {
                    shown["cost"] = json!(cost);
                }
                name_sandbox(&mut shown, Some(&id));
                shown
            })
            .collect();
        printer.json(&json!(objects)).await?;
    }
    Ok(exit::SUCCESS)
}

fn row((id, metrics, cost): (String, Option<Metrics>, Option<Cost>)) -> Vec<String> {
    let known = |text: fn(&Metrics) -> String| metrics.as_ref().map_or_else(|| "-".into(), text);
    vec![
        id,
        known(|metrics| format!("{:.2} s", metrics.cpu_time)),
        known(|metrics| ByteSize::bytes(metrics.memory).to_string()),
        known(|metrics| ByteSize::bytes(metrics.disk).to_string()),
        known(|metrics| metrics.processes.to_string()),
        cost.map_or_else(|| "-".into(), |cost| format!("{:.4}", cost.credits)),
    ]
}
