//! `sandboxes test`: creates and uses a sandbox of each variant.

use std::time::{Duration, Instant};

use code_sandboxes::{CallContext, Error, ErrorKind, Registry, Sandbox, Variant};
use serde_json::{Value, json};

use super::parity;
use crate::args::{ProviderArgs, TestArgs};
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

const GREETING: &str = "hello from the sandbox";
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// The result of one variant.
struct VariantTest {
    variant: Variant,
    problem: Option<Error>,
    /// True when the variant was not named, and this host lacks a requirement of it.
    skipped: bool,
    took: Duration,
}

/// Creates a sandbox of each variant, runs a command in it, and ends it. The exit status is 0 when all of them work. A variant
/// that is not named is skipped when this host lacks its requirements; the default variant is never skipped.
///
/// Several variants that are named are compared instead.
pub(crate) async fn test(args: &TestArgs, printer: &Printer) -> Result<u8, CliError> {
    let named = args
        .provider
        .iter()
        .map(|name| settings::variant(&ProviderArgs { provider: Some(name.clone()) }))
        .collect::<Result<Vec<_>, _>>()?;
    if named.len() > 1 {
        return parity::compare(named, args.isolation.unwrap_or_default(), printer).await;
    }
    let is_one_named = !named.is_empty();
    let variants = if is_one_named {
        named
    } else {
        let known = Registry::new().variants().into_iter();
        known.filter(|status| status.available).map(|status| status.variant).collect()
    };
    let mut all = Vec::new();
    for variant in variants {
        let start = Instant::now();
        let is_named = is_one_named || variant == Registry::new().default_variant();
        let missing = if is_named { None } else { missing(variant).await? };
        let skipped = missing.is_some();
        let problem = match missing {
            Some(missing) => Some(missing),
            None => try_out(variant).await.err(),
        };
        all.push(VariantTest { variant, problem, skipped, took: start.elapsed() });
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
    let works = all.iter().all(|tested| tested.problem.is_none() || tested.skipped);
    Ok(if works { exit::SUCCESS } else { exit::FAILED })
}

/// Returns the error of a variant whose requirements this host lacks.
async fn missing(variant: Variant) -> Result<Option<Error>, Error> {
    if !variant.is_local() {
        let error =
            Error::new(ErrorKind::Unavailable, "test", "a sandbox of this variant may cost money");
        return Ok(Some(error.with_hint(format!("test it with `sandboxes test -p {variant}`"))));
    }
    let health = Registry::new().backend(variant)?.health(&CallContext::default()).await?;
    let error = Error::new(ErrorKind::Unavailable, "test", health.detail);
    let error = match health.fix {
        Some(fix) => error.with_hint(fix),
        None => error,
    };
    Ok((!health.usable).then_some(error))
}

async fn try_out(variant: Variant) -> Result<(), Error> {
    let builder = Sandbox::builder().variant(variant);
    if !Registry::new().backend(variant)?.capabilities().commands {
        let code = format!("print({GREETING:?})");
        let run = builder.scope(async |sandbox| sandbox.run_code(code).timeout(RUN_TIMEOUT).await);
        let result = run.await?;
        if result.success() && result.stdout_trimmed() == GREETING {
            return Ok(());
        }
        let message =
            format!("`print` did not print: {}", result.execution_error.unwrap_or_default());
        return Err(Error::new(ErrorKind::Unexpected, "test", message));
    }
    let result = builder
        .scope(async |sandbox| sandbox.execute(["echo", GREETING]).timeout(RUN_TIMEOUT).await)
        .await?;
    if result.success() && result.stdout.trim_end() == GREETING {
        return Ok(());
    }
    let why = result.failure.map_or(result.stderr, |failure| failure.message);
    let message = format!("`echo` ended with status {}: {}", result.exit_code, why.trim());
    Err(Error::new(ErrorKind::Unexpected, "test", message))
}

fn row(tested: &VariantTest) -> Vec<String> {
    let works = match (&tested.problem, tested.skipped) {
        (None, _) => "yes",
        (Some(_), true) => "skipped",
        (Some(_), false) => "no",
    };
    let problem = tested.problem.as_ref().map_or_else(|| "-".into(), ToString::to_string);
    let time = format!("{:.0}ms", tested.took.as_secs_f64() * 1000.0);
    vec![tested.variant.to_string(), works.into(), time, problem]
}

fn object(tested: &VariantTest) -> Value {
    json!({
        "variant": tested.variant,
        "works": tested.problem.is_none(),
        "skipped": tested.skipped,
        "seconds": tested.took.as_secs_f64(),
        "problem": tested.problem.as_ref().map(ToString::to_string),
        "hint": tested.problem.as_ref().and_then(Error::hint),
    })
}
