//! `sandboxes install`, and pip in a sandbox.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::detached::World;

/// Writes a wheel with one module of that name into a directory.
fn wheel(directory: &Path, name: &str) {
    let code = "import sys, zipfile\n\
                name = sys.argv[1]\n\
                info = name + '-1.0.dist-info/'\n\
                with zipfile.ZipFile(name + '-1.0-py3-none-any.whl', 'w') as wheel:\n\
                \x20   wheel.writestr(name + '.py', 'VERSION = \"1.0\"\\n')\n\
                \x20   wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: %s\\nVersion: 1.0\\n' % name)\n\
                \x20   wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
                \x20   wheel.writestr(info + 'RECORD', '')\n";
    let made = Command::new("python3").args(["-c", code, name]).current_dir(directory).status();
    assert!(made.unwrap().success());
}

#[test]
fn packages_are_installed_for_code_and_commands() {
    let world = World::new();
    let wheels = world.path().join("wheels");
    std::fs::create_dir(&wheels).unwrap();
    ["tinya", "tinyb"].iter().for_each(|name| wheel(&wheels, name));
    let requirements = wheels.join("requirements.txt");
    std::fs::write(&requirements, "# all\ntinyb==1.0  # exactly\n").unwrap();
    // The first of these starts the supervisor, which fetches the wheels.
    let links = wheels.to_str().unwrap();
    let call = |arguments: &[&str]| {
        world.call(arguments).env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", links).output()
    };
    assert_eq!(call(&["create", "--name", "lab"]).status, 0);
    let installed = call(&["install", "lab", "tinya", "--json"]).json();
    assert_eq!(installed["installed"], json!(["tinya"]));
    assert_eq!(installed["id"], installed["sandbox_id"]);
    call(&["install", "lab", "-r", requirements.to_str().unwrap()]).assert(0, "");
    let code = "import tinya, tinyb; (tinya.VERSION, tinyb.VERSION)";
    call(&["exec", "lab", "--lang", "python", code]).assert(0, "('1.0', '1.0')\n");
    call(&["exec", "lab", "python3 -c 'import tinya; print(tinya.VERSION)'"]).assert(0, "1.0\n");

    let unknown = call(&["install", "lab", "tinyc"]);
    assert_eq!(unknown.status, 125, "{}", unknown.transcript());
    assert!(unknown.stderr.contains("tinyc"), "{}", unknown.transcript());
    let system = call(&["install", "lab", "--system", "curl", "wget"]);
    assert_eq!(system.status, 125, "{}", system.transcript());
    let command = "apt-get install -y curl wget";
    assert!(system.stderr.contains(command), "{}", system.transcript());
    let path = call(&["install", "lab", "./tinya-1.0-py3-none-any.whl"]);
    assert_eq!(path.status, 2, "{}", path.transcript());
    assert!(path.stderr.contains("sandboxes cp"), "{}", path.transcript());
}

#[test]
fn a_wheel_that_is_copied_in_is_installed_by_pip_inside() {
    let world = World::new();
    wheel(world.path(), "tinya");
    let file = world.path().join("tinya-1.0-py3-none-any.whl");
    world.create(&["--name", "lab"]);
    world.ok(&["cp", file.to_str().unwrap(), "lab:"]);
    let cell =
        "%pip install --quiet --no-index ./tinya-1.0-py3-none-any.whl\nimport tinya\ntinya.VERSION";
    assert_eq!(world.ok(&["exec", "lab", "--lang", "python", cell]), "'1.0'\n");
}
