//! Compares the search with `jupyter kernelspec list --json`, in many environments.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use jupyter_protocol::kernelspec::{Environment, PythonEnvironment, Search};
use serde_json::{Value, json};

use crate::Case;
use crate::harness::python;

pub(crate) const CASES: &[Case] = &[
    ("a_plain_environment_is_searched_as_jupyter_does", plain),
    ("every_variable_has_the_same_effect", variables),
    ("odd_specifications_are_listed_or_skipped_alike", odd),
    ("the_native_kernel_is_offered_alike", native),
];

/// Compares both results with only these variables set.
fn compare(home: &Path, variables: &[(&str, OsString)]) -> Value {
    compare_with(&python().unwrap(), home, variables)
}

fn compare_with(python: &Path, home: &Path, variables: &[(&str, OsString)]) -> Value {
    let mut environment: HashMap<OsString, OsString> =
        variables.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
    environment.insert("HOME".into(), home.into());
    environment.insert("PATH".into(), "/usr/bin:/bin".into());
    let mut command = Command::new(python);
    command.args(["-m", "jupyter_client.kernelspecapp", "list", "--json"]).env_clear();
    let output = command.envs(&environment).current_dir(home).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Value = serde_json::from_slice(&output.stdout).unwrap();

    let mut own = Environment::default().with_home(home.canonicalize().unwrap());
    own.variables = environment;
    let found = Search::new(&own, PythonEnvironment::from_executable(python)).find_all();
    let listed = serde_json::to_value(found.to_json()).unwrap();
    assert_eq!(listed, expected, "{variables:?}");
    expected["kernelspecs"].clone()
}

fn install(data: &Path, name: &str, spec: &Value) {
    let folder = data.join("kernels").join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("kernel.json"), spec.to_string()).unwrap();
}

fn named(name: &str) -> Value {
    json!({"argv": ["x", "{connection_file}"], "display_name": name, "language": "l", "env": {"A": "${B}"}})
}

fn plain() {
    let home = tempfile::tempdir().unwrap();
    install(&home.path().join(".local/share/jupyter"), "mine", &named("mine"));
    install(&home.path().join(".ipython"), "old", &named("old"));
    let found = compare(home.path(), &[]);
    for name in ["python3", "bash", "mine", "old"] {
        assert!(found.get(name).is_some(), "{name} in {found}");
    }
}

fn variables() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    for place in [
        "one",
        "two",
        "data",
        "xdg/jupyter",
        "base/share/jupyter",
        ".local/share/jupyter",
        "dirs/jupyter",
    ] {
        install(&at(place), "same", &named(place));
        install(&at(place), &place.replace('/', "-"), &named(place));
        install(&at(place), "python3", &named(place));
    }
    install(&at("ipython"), "same", &named("ipython"));
    let path = std::env::join_paths([at("one"), at("two")]).unwrap();
    let trailing = OsString::from(format!("{}/:", at("two").display()));
    let sets: &[&[(&str, OsString)]] = &[
        &[("JUPYTER_PATH", path.clone())],
        &[("JUPYTER_PATH", trailing)],
        &[("JUPYTER_PATH", "".into())],
        &[("JUPYTER_DATA_DIR", at("data").into())],
        &[("XDG_DATA_HOME", at("xdg").into())],
        &[("JUPYTER_DATA_DIR", at("data").into()), ("XDG_DATA_HOME", at("xdg").into())],
        &[("JUPYTER_PREFER_ENV_PATH", "0".into())],
        &[("JUPYTER_PREFER_ENV_PATH", "1".into())],
        &[("JUPYTER_PREFER_ENV_PATH", "".into())],
        &[("PYTHONUSERBASE", at("base").into())],
        &[("PYTHONUSERBASE", at("base").into()), ("PYTHONNOUSERSITE", "1".into())],
        &[("IPYTHONDIR", at("ipython").into())],
        &[("IPYTHONDIR", "~/ipython".into())],
        &[("JUPYTER_PLATFORM_DIRS", "1".into()), ("XDG_DATA_DIRS", at("dirs").into())],
        &[("JUPYTER_PLATFORM_DIRS", "1".into()), ("JUPYTER_PATH", path)],
        &[("JUPYTER_DEFAULT_PROVISIONER_NAME", "none".into())],
    ];
    for set in sets {
        compare(home.path(), set);
    }
}

fn odd() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let specs = [
        ("UPPER", named("upper")),
        ("with space", named("space")),
        ("empty", json!({})),
        ("list", json!([])),
        ("null", json!({"display_name": null})),
        ("number", json!({"language": 1})),
        ("mode", json!({"interrupt_mode": "MESSAGE"})),
        ("badmode", json!({"interrupt_mode": "no"})),
        ("extra", json!({"display_name": "x", "vendor": {"a": 1}, "name": "n", "mimetype": "m"})),
        (
            "provisioned",
            json!({"metadata": {"kernel_provisioner": {"provisioner_name": "local-provisioner"}}}),
        ),
        (
            "configured",
            json!({"metadata": {"kernel_provisioner": {"provisioner_name": "local-provisioner", "config": {"a": 1}}}}),
        ),
        (
            "unprovisioned",
            json!({"metadata": {"kernel_provisioner": {"provisioner_name": "none"}}}),
        ),
        ("halfprovisioned", json!({"metadata": {"kernel_provisioner": {}}})),
    ];
    for (name, spec) in &specs {
        install(&data, name, spec);
    }
    fs::create_dir_all(data.join("kernels/nofile")).unwrap();
    fs::write(data.join("kernels/afile"), "").unwrap();
    install(&data, "broken", &json!({}));
    fs::write(data.join("kernels/broken/kernel.json"), "{").unwrap();
    install(&data, "bytes", &json!({}));
    fs::write(data.join("kernels/bytes/kernel.json"), b"{\"language\": \"\xff\"}").unwrap();
    std::os::unix::fs::symlink(data.join("kernels/UPPER"), data.join("kernels/link")).unwrap();
    std::os::unix::fs::symlink(data.join("none"), data.join("kernels/dangling")).unwrap();
    let found = compare(home.path(), &[("JUPYTER_DATA_DIR", data.into())]);
    for name in ["upper", "with space", "empty", "mode", "extra", "configured", "link"] {
        assert!(found.get(name).is_some(), "{name} in {found}");
    }
    for name in
        ["UPPER", "list", "null", "number", "badmode", "unprovisioned", "nofile", "broken", "bytes"]
    {
        assert!(found.get(name).is_none(), "{name} in {found}");
    }
}

/// A virtual environment that includes the system's packages and has no kernel of its own.
fn native() {
    let home = tempfile::tempdir().unwrap();
    let environment = home.path().join("env");
    let made = Command::new(python().unwrap())
        .args(["-m", "venv", "--without-pip"])
        .arg(&environment)
        .status();
    assert!(made.unwrap().success());
    let outer = PythonEnvironment::from_executable(python().unwrap()).unwrap();
    let packages = environment
        .join(format!("lib/python{}.{}/site-packages", outer.version.0, outer.version.1));
    let source = outer.prefix.join(packages.strip_prefix(&environment).unwrap());
    for entry in fs::read_dir(source).unwrap().flatten() {
        std::os::unix::fs::symlink(entry.path(), packages.join(entry.file_name())).unwrap();
    }
    let found = compare_with(&environment.join("bin/python"), home.path(), &[]);
    let argv = found["python3"]["spec"]["argv"][0].as_str().unwrap();
    assert!(argv.starts_with(environment.to_str().unwrap()), "{argv}");
}
