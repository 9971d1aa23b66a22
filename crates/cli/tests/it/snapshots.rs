//! `sandboxes snapshot`, and sandboxes that start from one.

use serde_json::{Value, json};

use crate::detached::World;

fn listed(world: &World) -> Vec<Value> {
    serde_json::from_str(&world.ok(&["snapshot", "ls", "--json"])).unwrap()
}

#[test]
fn a_snapshot_is_taken_listed_gone_back_to_and_deleted() {
    let world = World::new();
    assert_eq!(world.ok(&["snapshot", "ls", "--json"]), "[]\n");
    let id = world.create(&["--name", "lab"]);
    world.ok(&["exec", "lab", "--lang", "python", "x = 6; n = open('a', 'w').write('1')"]);
    let taken =
        world.run(&["snapshot", "create", "lab", "one", "--description", "for later", "--json"]);
    let taken = taken.json();
    assert_eq!(taken["name"], "one");
    assert_eq!(taken["sandbox_id"], id.as_str());
    assert_eq!(taken["contexts"], json!(["default"]));
    assert_eq!(taken["variables"], json!(["default"]));
    assert_eq!(taken["left_out"], json!([]));
    assert_eq!(listed(&world), std::slice::from_ref(&taken));
    let table = world.ok(&["snapshot", "ls"]);
    assert!(
        table.contains("one") && table.contains("for later") && table.contains("default"),
        "{table}"
    );

    world.ok(&["exec", "lab", "--lang", "python", "x = 7; n = open('b', 'w').write('2')"]);
    let restored = world.run(&["snapshot", "restore", "lab", "one"]);
    restored.assert(0, "one\n");
    assert_eq!(restored.stderr, "");
    assert_eq!(world.ok(&["exec", "lab", "--lang", "python", "x"]), "6\n");
    assert_eq!(world.ok(&["exec", "lab", "ls"]), "a\n");
    assert_eq!(world.ok(&["run", "--snapshot", "one", "cat", "a"]), "1");

    // Files and variables outlive the sandbox, interpreters do not.
    world.ok(&["rm", "lab"]);
    assert_eq!(listed(&world)[0]["contexts"], json!([]));
    world.create(&["--name", "other", "--snapshot", "one"]);
    assert_eq!(world.ok(&["exec", "other", "ls"]), "a\n");
    assert_eq!(world.ok(&["exec", "other", "--lang", "python", "x"]), "6\n");
    world.ok(&["exec", "other", "--lang", "python", "x = 8"]);
    let restored = world.run(&["snapshot", "restore", "other", "one"]);
    assert_eq!(restored.stderr, "");
    assert_eq!(world.ok(&["exec", "other", "--lang", "python", "x"]), "6\n");
    assert_eq!(world.ok(&["run", "--snapshot", "one", "--lang", "python", "x * 7"]), "42\n");

    assert_eq!(world.ok(&["snapshot", "rm", "one", "--json"]), "{\"deleted\":[\"one\"]}\n");
    assert_eq!(listed(&world), [json!(null); 0]);
}

/// The interpreters of a snapshot belong to the supervisor of the sandbox, which deletes them with the snapshot.
#[test]
fn with_a_snapshot_its_interpreters_go() {
    let world = World::new();
    world.create(&["--name", "lab"]);
    world.ok(&["exec", "lab", "--lang", "python", "x = 6"]);
    let processes = || {
        let listed = world.ok(&["exec", "lab", "--", "sh", "-c", "cd /proc && echo [0-9]*"]);
        listed.split_whitespace().count()
    };
    let before = processes();
    let until = |count: usize| {
        let began = std::time::Instant::now();
        while processes() != count {
            assert!(began.elapsed().as_secs() < 30, "{} and not {count}", processes());
        }
    };
    world.ok(&["snapshot", "create", "lab", "one"]);
    // A copy, and a copy of the copy.
    until(before + 2);
    world.ok(&["snapshot", "rm", "one"]);
    until(before);
}

#[test]
fn impossible_snapshots_are_errors() {
    let world = World::new();
    world.create(&["--name", "lab"]);
    for (arguments, status, message) in [
        (&["snapshot", "create", "lab", "../x"][..], 2, "names have 1 to 64"),
        (&["snapshot", "create", "missing", "one"], 125, "missing"),
        (&["snapshot", "restore", "lab", "one"], 125, "snapshot \"one\" not found"),
        (&["snapshot", "rm", "one"], 125, "snapshot \"one\" not found"),
        (&["run", "--snapshot", "one", "true"], 125, "snapshot \"one\" not found"),
        (&["snapshot", "rm"], 2, "NAME"),
        (&["shell", "lab", "--snapshot", "one"], 2, "--snapshot is for a new sandbox"),
    ] {
        let outcome = world.run(arguments);
        assert_eq!(outcome.status, status, "{arguments:?}: {}", outcome.transcript());
        assert!(outcome.stderr.contains(message), "{arguments:?}: {}", outcome.transcript());
    }
    world.ok(&["snapshot", "create", "lab", "one"]);
    let again = world.run(&["snapshot", "create", "lab", "one", "--json"]);
    assert_eq!(again.json()["error"]["kind"], "already_exists");
    world.ok(&[
        "exec",
        "lab",
        "--lang",
        "python",
        "import threading\nthreading.Timer(600, print).start()",
    ]);
    let taken = world.run(&["snapshot", "create", "lab", "two"]);
    taken.assert(0, "two\n");
    assert!(
        taken.stderr.contains("not in the snapshot: a copy of the interpreter of context default"),
        "{taken:?}"
    );
}
