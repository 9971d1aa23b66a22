//! What the environment of this process says about a sandbox. The supervisor has that of whoever started it, maybe long ago
//! and for something else, so what counts is said with the create.

use std::env;
use std::path::{Path, PathBuf};

use sandbox_core::{CreateSpec, Variant};
use serde_json::{Map, Value};

/// What names the interpreter, and the environment that is activated.
const PYTHON: &str = "CODE_SANDBOXES_PYTHON";
const ACTIVATED: &str = "VIRTUAL_ENV";
/// What names the image of containers.
const IMAGE: &str = "CODE_SANDBOXES_IMAGE";

/// What leads to a container engine.
const ENGINE: [&str; 5] =
    ["DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"];

/// Options of kernels that are elsewhere, which no interpreter of this host has to do with.
const ELSEWHERE: [&str; 3] = ["server_url", "kernel_id", "connection_file"];

type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Says in the request what the environment of this process says and the request does not.
pub(super) fn complete(variant: Variant, spec: &mut CreateSpec) {
    complete_with(variant, spec, &variable);
}

fn complete_with(variant: Variant, spec: &mut CreateSpec, set: Variables<'_>) {
    match variant {
        Variant::LOCAL_EVAL | Variant::LOCAL_JUPYTER => name_python(spec, set),
        Variant::LOCAL_DOCKER if spec.image.is_none() && spec.snapshot.is_none() => {
            spec.image = set(IMAGE);
        }
        _ => {}
    }
}

fn name_python(spec: &mut CreateSpec, set: Variables<'_>) {
    let options = &mut spec.provider_options;
    if ELSEWHERE.iter().any(|key| options.contains_key(*key)) {
        return;
    }
    let named = match options.get("python") {
        Some(Value::String(named)) => Some(PathBuf::from(named)),
        // Whoever reads the options says what is wrong with it.
        Some(_) => return,
        None => set(PYTHON).map(PathBuf::from).or_else(|| {
            let activated = Path::new(&set(ACTIVATED)?).join("bin/python");
            activated.exists().then_some(activated)
        }),
    };
    let named = named.and_then(|path| absolute(path).to_str().map(str::to_owned));
    if let Some(named) = named {
        options.insert("python".into(), named.into());
    }
}

/// A path from the working directory, which is another one in the supervisor. The name of a program is none.
fn absolute(path: PathBuf) -> PathBuf {
    if path.components().count() < 2 {
        return path;
    }
    std::path::absolute(&path).unwrap_or(path)
}

/// The variables of this process that lead to a container engine. The supervisor tells its own to whoever greets it.
pub fn engine_variables() -> Map<String, Value> {
    ENGINE
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), Value::from(variable(name)?))))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
    fn the_interpreter_is_the_one_of_who_asks() {
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
    fn paths_begin_where_who_asks_is() {
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
