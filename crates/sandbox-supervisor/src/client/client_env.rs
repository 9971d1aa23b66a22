//! Variables of this process that describe a sandbox. The supervisor has the environment of the process that started it, so
//! its clients send the variables that count with each creation.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use sandbox_core::{CreateSpec, Variant};
use serde_json::{Map, Value};

use super::forwarded::{FORWARDED, SAME};

/// A part of a request that variables supply when the request leaves it out.
pub(super) struct Forwarded {
    pub(super) target: Target,
    /// Variables, of which the first that is set counts. `NAME/path` is a file below the directory that a variable names,
    /// and counts when the file is there.
    pub(super) from: &'static [&'static str],
    /// Options and fields beside which the environment does not count.
    pub(super) unless: &'static [&'static str],
    /// True when the value is a path, which the supervisor would resolve from another working directory.
    pub(super) is_path: bool,
}

/// The part of a request that a variable supplies.
pub(super) enum Target {
    /// A provider option.
    Option(&'static str),
    /// The image.
    Image,
}

/// Variables by name; `None` for those that are not set.
pub(super) type Variables = BTreeMap<&'static str, Option<String>>;

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Completes a request with the variables of this process.
pub(super) fn complete(variant: Variant, spec: &mut CreateSpec) {
    complete_with(variant, spec, &variable);
}

fn complete_with(variant: Variant, spec: &mut CreateSpec, set: Lookup<'_>) {
    for rule in row_for(FORWARDED, variant).into_iter().flatten() {
        rule.apply(spec, set);
    }
}

/// Returns the row of a variant.
fn row_for<T: ?Sized>(
    table: &'static [(Variant, &'static T)],
    variant: Variant,
) -> Option<&'static T> {
    table.iter().find(|(of, _)| *of == variant).map(|(_, row)| *row)
}

impl Forwarded {
    fn apply(&self, spec: &mut CreateSpec, set: Lookup<'_>) {
        if self.unless.iter().any(|name| is_given(spec, name)) {
            return;
        }
        let given = match self.target {
            Target::Option(key) => spec.provider_options.get(key).cloned(),
            Target::Image => spec.image.clone().map(Value::from),
        };
        let text = match given {
            Some(Value::String(text)) => Some(text),
            // The backend reports what is wrong with it.
            Some(_) => return,
            None => self.from.iter().find_map(|name| found(name, set)),
        };
        let text = match text {
            Some(text) if self.is_path => absolute(text.into()).to_str().map(str::to_owned),
            text => text,
        };
        let Some(text) = text else { return };
        match self.target {
            Target::Option(key) => drop(spec.provider_options.insert(key.into(), text.into())),
            Target::Image => spec.image = Some(text),
        }
    }
}

fn is_given(spec: &CreateSpec, name: &str) -> bool {
    match name {
        "image" => spec.image.is_some(),
        "snapshot" => spec.snapshot.is_some(),
        option => spec.provider_options.contains_key(option),
    }
}

/// Returns the value of a variable, or the path of the file below the directory that it names.
fn found(name: &str, set: Lookup<'_>) -> Option<String> {
    let Some((name, below)) = name.split_once('/') else { return set(name) };
    let file = Path::new(&set(name)?).join(below);
    file.exists().then(|| file.to_str().map(str::to_owned)).flatten()
}

/// Makes a path absolute, because the working directory of the supervisor is another one. A bare name is a program's, and
/// stays.
fn absolute(path: PathBuf) -> PathBuf {
    if path.components().count() < 2 {
        return path;
    }
    std::path::absolute(&path).unwrap_or(path)
}

/// Returns the variables on which sandboxes of a variant depend, and which must be the same in the supervisor.
pub(super) fn same_variables(variant: Variant) -> Variables {
    let names = row_for(SAME, variant).into_iter().flatten();
    names.map(|name| (*name, variable(name))).collect()
}

/// Returns the variables of this process that sandboxes depend on. The supervisor reports its own to every client.
pub fn dependent_variables() -> Map<String, Value> {
    let names = SAME.iter().flat_map(|(_, names)| *names);
    names.filter_map(|name| Some(((*name).to_owned(), Value::from(variable(name)?)))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PYTHON: &str = "CODE_SANDBOXES_PYTHON";
    const ACTIVATED: &str = "VIRTUAL_ENV";
    const IMAGE: &str = "CODE_SANDBOXES_IMAGE";

    fn python_of(
        variant: Variant,
        options: Value,
        variables: &[(&str, &str)],
    ) -> (Option<Value>, Option<String>) {
        let mut spec = CreateSpec::default();
        spec.provider_options = options.as_object().cloned().unwrap_or_default();
        let set = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        complete_with(variant, &mut spec, &set);
        (spec.provider_options.get("python").cloned(), spec.image)
    }

    #[test]
    fn the_interpreter_is_the_clients() {
        let named = [(PYTHON, "/opt/python3"), (ACTIVATED, "/nowhere"), (IMAGE, "mine")];
        let python = |variant, options| python_of(variant, options, &named).0;
        for variant in [Variant::LOCAL_EVAL, Variant::LOCAL_JUPYTER] {
            assert_eq!(python(variant, json!({})), Some(json!("/opt/python3")));
            assert_eq!(python(variant, json!({"python": "/x/y"})), Some(json!("/x/y")));
            assert_eq!(python(variant, json!({"python": 3})), Some(json!(3)));
            assert_eq!(python_of(variant, json!({}), &[(ACTIVATED, "/nowhere")]).0, None);
            assert_eq!(python_of(variant, json!({}), &[]).0, None);
        }
        let elsewhere = json!({"server_url": "http://127.0.0.1:1"});
        assert_eq!(python(Variant::LOCAL_JUPYTER, elsewhere), None);
        // In an image it is a program of the image.
        assert_eq!(python(Variant::LOCAL_DOCKER, json!({})), None);
        assert_eq!(python_of(Variant::LOCAL_DOCKER, json!({}), &named).1.as_deref(), Some("mine"));
        assert_eq!(python_of(Variant::LOCAL_EVAL, json!({}), &named).1, None);
    }

    #[test]
    fn paths_are_relative_to_the_client() {
        let here = env::current_dir().unwrap();
        let relative = python_of(Variant::LOCAL_EVAL, json!({"python": "venv/bin/python"}), &[]).0;
        assert_eq!(relative, Some(json!(here.join("venv/bin/python"))));
        let program = python_of(Variant::LOCAL_EVAL, json!({"python": "python3.12"}), &[]).0;
        assert_eq!(program, Some(json!("python3.12")));
    }

    #[test]
    fn an_activated_environment_counts() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        let python = folder.path().join("bin/python");
        std::fs::write(&python, "").unwrap();
        let activated = [(ACTIVATED, folder.path().to_str().unwrap())];
        let found = python_of(Variant::LOCAL_JUPYTER, json!({}), &activated).0;
        assert_eq!(found, Some(json!(python)));
    }
}
