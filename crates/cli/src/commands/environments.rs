//! `sandboxes environments`

use code_sandboxes::{Registry, SandboxEnvironment, Variant, lacks_credentials, list_environments};
use serde_json::{Value, json};

use crate::args::ProviderArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;
use crate::settings;

/// Lists the environments of a variant, or of every variant of this build.
///
/// One variant that cannot be asked does not hide the others, unless it is the one that was named.
pub(crate) async fn environments(args: &ProviderArgs, printer: &Printer) -> Result<u8, Problem> {
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
                Err(error) => printer.warning(&format!("{variant} is left out: {error}")),
            }
        }
    }
    match printer.format() {
        Format::Text => {
            printer.table(&["Variant", "Name", "Title", "Language"], rows(&found)).await?
        }
        Format::Json | Format::JsonLines => printer.json(&objects(&found)).await?,
    }
    Ok(exit::SUCCESS)
}

type Found = Vec<(Variant, SandboxEnvironment)>;

fn add(found: &mut Found, variant: Variant, environments: Vec<SandboxEnvironment>) {
    found.extend(environments.into_iter().map(|environment| (variant, environment)));
}

fn rows(found: &Found) -> Vec<Vec<String>> {
    let row = |(variant, environment): &(Variant, SandboxEnvironment)| {
        vec![
            variant.to_string(),
            environment.name.clone(),
            environment.title.clone(),
            environment.language.clone(),
        ]
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
