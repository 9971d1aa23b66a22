//! `sandboxes test`: whether a sandbox can be made and used, by doing it.

use std::time::{Duration, Instant};

use code_sandboxes::{Error, ErrorKind, Registry, Sandbox, Variant};
use serde_json::{Value, json};

use crate::args::ProviderArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;
use crate::settings;

const GREETING: &str = "hello from the sandbox";
const PATIENCE: Duration = Duration::from_secs(120);

/// What came of one variant.
struct Tested {
    variant: Variant,
    problem: Option<Error>,
    took: Duration,
}

/// Makes a sandbox of each variant, runs something in it, and ends it. The status is 0 when all of them work.
pub(crate) async fn test(args: &ProviderArgs, printer: &Printer) -> Result<u8, Problem> {
    let variants = match &args.provider {
        Some(_) => vec![settings::variant(args)?],
        None => {
            let known = Registry::new().variants().into_iter();
            known.filter(|status| status.available).map(|status| status.variant).collect()
        }
    };
    let mut all = Vec::new();
    for variant in variants {
        let began = Instant::now();
        let problem = try_out(variant).await.err();
        all.push(Tested { variant, problem, took: began.elapsed() });
    }
    match printer.format() {
        Format::Text => {
            let rows = all.iter().map(row).collect();
            printer.table(&["Variant", "Works", "Time", "Problem"], rows).await?;
            for problem in all.iter().filter_map(|tested| tested.problem.as_ref()) {
                problem.hint().into_iter().for_each(|hint| printer.hint(hint));
            }
        }
        Format::Json | Format::JsonLines => {
            printer.json(&all.iter().map(object).collect()).await?;
        }
    }
    let works = all.iter().all(|tested| tested.problem.is_none());
    Ok(if works { exit::SUCCESS } else { exit::FAILED })
}

async fn try_out(variant: Variant) -> Result<(), Error> {
    let builder = Sandbox::builder().variant(variant);
    let result = builder
        .scope(async |sandbox| sandbox.execute(["echo", GREETING]).timeout(PATIENCE).await)
        .await?;
    if result.success() && result.stdout.trim_end() == GREETING {
        return Ok(());
    }
    let why = result.failure.map_or(result.stderr, |failure| failure.message);
    let message = format!("`echo` ended with status {}: {}", result.exit_code, why.trim());
    Err(Error::new(ErrorKind::Unexpected, "test", message))
}

fn row(tested: &Tested) -> Vec<String> {
    let works = if tested.problem.is_none() { "yes" } else { "no" };
    let problem = tested.problem.as_ref().map_or_else(|| "-".into(), ToString::to_string);
    let time = format!("{:.0}ms", tested.took.as_secs_f64() * 1000.0);
    vec![tested.variant.to_string(), works.into(), time, problem]
}

fn object(tested: &Tested) -> Value {
    json!({
        "variant": tested.variant,
        "works": tested.problem.is_none(),
        "seconds": tested.took.as_secs_f64(),
        "problem": tested.problem.as_ref().map(ToString::to_string),
        "hint": tested.problem.as_ref().and_then(Error::hint),
    })
}
