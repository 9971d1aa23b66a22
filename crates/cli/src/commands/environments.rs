//! `sandboxes environments`

use code_sandboxes::{Registry, SandboxEnvironment, Variant, lacks_credentials, list_environments};
use serde_json::{Value, json};

use crate::args::ProviderArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

/// Lists the environments of a variant, or of every variant of this build.
///
/// A variant that fails is skipped with a warning, unless it is the named one.
pub(crate) async fn environments(args: &ProviderArgs, printer: &Printer) -> Result<u8, CliError> {
    let mut found = Vec::new();
    if args.provider.is_some() {
        let variant = settings::variant(args)?;
        add(&mut found, variant, list_environments(variant).await?);
    } else {
        let known = Registry::new().variants();
        for variant in known.iter().filter(|status| status.available).map(|status| status.variant) {
            match list_environments(variant).await {
                Ok(environments) => add(&mut found, variant, environments),
                Err(error) if lacks_credentials(&error) => {}
                Err(error) => printer.warning(&format!("{variant} is skipped: {error}")),
            }
        }
    }
    match printer.format() {
        Format::Text => {
            let columns = columns(&found);
            let named = columns.iter().map(|(name, _)| *name);
            let names: Vec<_> = ["Variant"].into_iter().chain(named).collect();
            printer.table(&names, rows(&found, &columns)).await?
        }
        Format::Json | Format::JsonLines => printer.json(&objects(&found)).await?,
    }
    Ok(exit::SUCCESS)
}

type Found = Vec<(Variant, SandboxEnvironment)>;

fn add(found: &mut Found, variant: Variant, environments: Vec<SandboxEnvironment>) {
    found.extend(environments.into_iter().map(|environment| (variant, environment)));
}

/// A header, and the text of a cell.
type Column = (&'static str, fn(&SandboxEnvironment) -> String);

/// Returns the columns that have a text for some environment: local environments have no cost and no resources.
fn columns(found: &Found) -> Vec<Column> {
    let always: [Column; 3] = [
        ("Name", |environment| environment.name.clone()),
        ("Title", |environment| environment.title.clone()),
        ("Language", |environment| environment.language.clone()),
    ];
    let if_known: [Column; 4] = [
        ("CPU", |environment| environment.cpu.clone().unwrap_or_default()),
        ("Memory", |environment| environment.memory.clone().unwrap_or_default()),
        ("GPU", gpu),
        ("Credits/hour", credits),
    ];
    let is_known =
        |(_, text): &Column| found.iter().any(|(_, environment)| !text(environment).is_empty());
    always.into_iter().chain(if_known.into_iter().filter(is_known)).collect()
}

fn gpu(environment: &SandboxEnvironment) -> String {
    match (environment.gpu_count.unwrap_or_default(), &environment.gpu) {
        (0, None) => String::new(),
        (0, Some(kind)) => kind.clone(),
        (count, kind) => format!("{count} {}", kind.as_deref().unwrap_or("of unknown type")),
    }
}

fn credits(environment: &SandboxEnvironment) -> String {
    let hourly = environment.burning_rate * 3600.0;
    if hourly > 0.0 { format!("{hourly:.2}") } else { String::new() }
}

fn rows(found: &Found, columns: &[Column]) -> Vec<Vec<String>> {
    let row = |(variant, environment): &(Variant, SandboxEnvironment)| {
        let known = columns.iter().map(|(_, text)| text(environment));
        [variant.to_string()].into_iter().chain(known).collect()
    };
    found.iter().map(row).collect()
}

fn objects(found: &Found) -> Value {
    let object = |(variant, environment): &(Variant, SandboxEnvironment)| {
        let mut object = json!(environment);
        object["variant"] = json!(variant);
        object
    };
    found.iter().map(object).collect()
}
