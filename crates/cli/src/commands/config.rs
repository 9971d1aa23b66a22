//! `sandboxes config`

use code_sandboxes::Registry;
use serde_json::{Value, json};

use crate::config::Effective;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Shows the configuration and the settings in effect. Keys are named and not shown.
pub(crate) async fn config(profile: Option<&str>, printer: &Printer) -> Result<u8, CliError> {
    let Effective { path, is_there, profile, profiles, settings, keys } =
        crate::config::load(profile)?;
    let shown = path.as_ref().map(|path| path.display().to_string());
    let mut settings = json!(settings);
    if let Value::Object(settings) = &mut settings {
        settings.retain(|_, value| !value.is_null());
        // Values of variables may be secret.
        if let Some(Value::Object(env)) = settings.get_mut("env") {
            env.values_mut().for_each(|value| *value = "***".into());
        }
    }
    let registry = Registry::new();
    let detected: Vec<_> = registry.with_credentials().iter().map(ToString::to_string).collect();
    let default = registry.default_variant().to_string();
    let keys: Vec<_> = keys.into_keys().collect();
    if printer.format() != Format::Text {
        let object = json!({
            "path": shown, "exists": is_there, "profile": profile, "profiles": profiles,
            "settings": settings, "keys": keys, "with_credentials": detected, "default": default,
        });
        printer.json(&object).await?;
        return Ok(exit::SUCCESS);
    }
    let file = shown.unwrap_or_else(|| "no home directory".to_owned());
    let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    let mut rows = vec![
        vec!["file".to_owned(), if is_there { file } else { format!("{file} (not there)") }],
        vec!["profile".to_owned(), profile.unwrap_or_else(|| "none".to_owned())],
        vec!["profiles".to_owned(), list(&profiles)],
        vec!["keys".to_owned(), list(&keys)],
        vec!["with credentials".to_owned(), list(&detected)],
        vec!["default variant".to_owned(), default],
    ];
    for (name, value) in settings.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        rows.push(vec![name.clone(), value]);
    }
    printer.table(&["Setting", "Value"], rows).await?;
    Ok(exit::SUCCESS)
}
