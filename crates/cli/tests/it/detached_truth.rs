//! Detached sandboxes match their requests, and reports about them are true.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::detached::{World, eventually, kill};
use crate::support::{finish, sandboxes, wait};

const OFF: [&str; 2] = ["--isolation", "off"];
const OFF_WARNING: &str = "warning: isolation is off: the code has your rights";

#[test]
fn another_sandbox_than_was_asked_for_is_refused() {
    let world = World::new();
    let id = world.create(&["--isolation", "off", "-l", "p=off"]);
    for (flags, field, had) in [
        (&[][..], "isolation", "off"),
        (&["--isolation", "strict", "--network", "none", "--disk", "5m"], "isolation", "off"),
        (&["--isolation", "off", "--disk", "5m"], "disk", "not set"),
    ] {
        let reuse = [&["run", "--reuse", "-l", "p=off"], flags, &["--json", "id -u"]].concat();
        let outcome = world.run(&reuse);
        assert_eq!(outcome.status, 2, "{}", outcome.transcript());
        let error = &outcome.json()["error"];
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{field}` is {had} in {id}")), "{message}");
        assert!(error["hint"].as_str().unwrap().contains("another label"), "{error}");
        let create = [&["create", "--reuse", "-l", "p=off"], flags].concat();
        assert_eq!(world.run(&create).status, 2, "{flags:?}");
    }
    let same = ["run", "--reuse", "-l", "p=off", "--isolation", "off", "echo here"];
    world.run(&same).assert(0, "here\n");
    assert_eq!(world.ids(), [id]);
}

#[test]
fn a_sandbox_with_limits_is_found_again_and_not_with_others() {
    let world = World::new();
    let limits = ["-l", "p=x", "--network", "none", "--disk", "5m", "--processes", "64"];
    let id = world.create(&limits);
    assert_eq!(world.create(&[&limits[..], &["--reuse"]].concat()), id);
    assert_eq!(world.create(&["--reuse", "-l", "p=x"]), id);
    for other in [["--disk", "6m"], ["--processes", "65"], ["--name", "b"]] {
        let outcome = world.run(&[&["create", "--reuse", "-l", "p=x"], &other[..]].concat());
        assert_eq!(outcome.status, 2, "{other:?}: {}", outcome.transcript());
        assert!(outcome.stderr.contains(&format!("in {id}")), "{}", outcome.stderr);
    }
    // A strict sandbox has no network by default.
    let plain = world.create(&["-l", "p=y"]);
    assert_eq!(world.create(&["--reuse", "-l", "p=y", "--network", "none"]), plain);
}

#[test]
fn weak_isolation_is_always_shown() {
    let world = World::new();
    let made = world.run(&[&["create", "--name", "weak"], &OFF[..]].concat());
    assert!(made.stderr.contains(OFF_WARNING), "{}", made.transcript());
    world.create(&["--name", "firm"]);
    for arguments in [
        &["exec", "weak", "true"][..],
        &["exec", "weak", "--json", "true"],
        &["shell", "weak"],
        &["repl", "weak"],
    ] {
        let reported = world.call(arguments).stdin("").output();
        assert_eq!(reported.status, 0, "{arguments:?}: {}", reported.transcript());
        assert!(reported.stderr.contains(OFF_WARNING), "{arguments:?}: {}", reported.transcript());
    }
    assert!(!world.run(&["exec", "firm", "true"]).stderr.contains("isolation"));
    let listed = world.ok(&["ls"]);
    let row = |name: &str| listed.lines().find(|line| line.contains(name)).unwrap();
    assert!(listed.lines().next().unwrap().contains("Isolation"), "{listed}");
    assert!(row(" weak ").contains(" off "), "{listed}");
    assert!(row(" firm ").contains(" strict "), "{listed}");
}

#[test]
fn a_flood_of_lines_does_not_delay_other_clients() {
    let world = World::new();
    let id = world.create(&[]);
    let flood = "yes '' | head -c 33554432";
    let mut child = world.call(&["exec", &id, flood]).stdout(Stdio::null()).spawn();
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    while child.try_wait().unwrap().is_none() {
        let asked = Instant::now();
        world.ids();
        longest = longest.max(asked.elapsed());
        assert!(began.elapsed() < Duration::from_secs(40), "the flood has not ended");
    }
    assert_eq!(wait(&mut child), 0);
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    let kept = world.ok(&["logs", &id]);
    assert!(kept.lines().next().unwrap().ends_with("earlier lines are not kept"));
    assert!(kept.lines().last().unwrap().ends_with(" exit 0"), "{:?}", kept.lines().last());
}

#[test]
fn logs_end_at_the_time_of_the_request() {
    let world = World::new();
    let id = world.create(&[]);
    let mut chatter = world.call(&["exec", &id, "yes"]).stdout(Stdio::null()).spawn();
    eventually("a log", || world.ok(&["logs", &id]).lines().count() > 1000);
    let logs = world.call(&["logs", &id]).spawn();
    let outcome = finish(logs);
    chatter.kill().unwrap();
    chatter.wait().unwrap();
    assert_eq!(outcome.status, 0);
    assert!(outcome.stdout.len() < 3 << 20, "{} bytes", outcome.stdout.len());
}

#[test]
fn a_removed_socket_is_restored() {
    let world = World::new();
    let id = world.create(&[]);
    let supervisor = world.supervisor();
    fs::remove_file(world.path().join("supervisor.sock")).unwrap();
    assert_eq!(world.ids(), [id.as_str()], "never an empty list");
    fs::remove_file(world.path().join("supervisor.sock")).unwrap();
    fs::remove_file(world.path().join("supervisor.lock")).unwrap();
    eventually("the socket", || world.path().join("supervisor.sock").exists());
    world.create(&[]);
    assert_eq!(world.ids().len(), 2);
    assert_eq!(world.supervisor(), supervisor, "no other one was started");
    kill(supervisor, "TERM");
    eventually("its end", || world.supervisors().is_empty());
    assert!(!world.path().join("supervisor.sock").exists());
}

#[test]
fn a_supervisor_without_a_socket_is_named_at_once() {
    let world = World::new();
    world.create(&[]);
    let supervisor = world.supervisor();
    kill(supervisor, "STOP");
    fs::remove_file(world.path().join("supervisor.sock")).unwrap();
    for arguments in [&["ls", "--json"][..], &["create", "--json"]] {
        let began = Instant::now();
        let outcome = world.run(arguments);
        assert_eq!(outcome.status, 125, "{}", outcome.transcript());
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        let error = &outcome.json()["error"];
        let named = format!("process {supervisor}");
        assert!(error["message"].as_str().unwrap().contains(&named), "{error}");
        assert!(error["hint"].as_str().unwrap().contains("kill"), "{error}");
    }
}

#[test]
fn removing_all_leaves_nothing_to_list() {
    let world = World::new();
    let all =
        || -> Vec<Value> { serde_json::from_str(&world.ok(&["ls", "-a", "--json"])).unwrap() };
    let ended = world.create(&["-l", "p=x"]);
    world.run(&["stop", &ended]).assert(0, "");
    let other = world.create(&["-l", "p=y"]);
    world.run(&["stop", "--all"]).assert(0, "");
    assert_eq!(all().len(), 2, "stopping forgets nothing");
    world.run(&["rm", "-l", "p=x"]).assert(0, "");
    assert_eq!(all().len(), 1);
    assert_eq!(all()[0]["id"], other.as_str());
    let running = world.create(&[]);
    let reported = world.ok(&["rm", "--all", "--json"]);
    let reported: Value = serde_json::from_str(&reported).unwrap();
    assert_eq!(reported, json!({"ended": [running, other]}));
    assert_eq!(all(), Vec::<Value>::new());
}

#[test]
fn an_incomplete_listing_is_a_failure() {
    let world = World::new();
    fs::create_dir(world.path().join("supervisor.sock")).unwrap();
    for arguments in [&["ls"][..], &["ls", "-p", "eval"], &["rm", "--all"], &["create"]] {
        let outcome = world.run(arguments);
        assert_eq!(outcome.status, 125, "{arguments:?}: {}", outcome.transcript());
        assert_eq!(outcome.text(), "", "{arguments:?}");
        assert!(outcome.stderr.contains("another file has its path"), "{}", outcome.stderr);
    }
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = world.run(&["ls", "--json"]);
    assert_eq!(outcome.status, 125, "{}", outcome.transcript());
    assert_eq!(outcome.json()["error"]["kind"], "permission_denied");
}

#[test]
fn an_unusable_directory_is_an_error_with_a_hint() {
    let world = World::new();
    let file = world.path().join("file");
    fs::write(&file, "content").unwrap();
    let long = world.path().join("x".repeat(120));
    for (directory, status, part) in [
        ("relative", 2, "must be an absolute path"),
        (long.to_str().unwrap(), 2, "too long for a socket"),
        (file.to_str().unwrap(), 125, "is not a directory"),
    ] {
        let call = sandboxes(["ls"]).env("CODE_SANDBOXES_RUNTIME_DIR", directory);
        let outcome = call.directory(world.path()).output();
        assert_eq!(outcome.status, status, "{directory}: {}", outcome.transcript());
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("hint: choose another"), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("remove"), "{}", outcome.stderr);
    }
    assert!(!world.path().join("relative").exists());
    // The longest allowed path can be bound.
    let longest = format!("{}/{}", world.path().display(), "x".repeat(90));
    let longest = &longest[..91];
    fs::create_dir(longest).unwrap();
    UnixDatagram::bind(format!("{longest}/supervisor.sock")).unwrap();
}

#[test]
fn a_sandbox_whose_id_cannot_be_delivered_is_ended() {
    let world = World::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = world.call(&["create"]).stdout(full.into()).spawn();
    assert_eq!(wait(&mut child), 125);
    assert_eq!(world.ids(), Vec::<String>::new());
}

#[test]
fn a_name_means_one_sandbox() {
    let world = World::new();
    for name in ["a/b", "a:b"] {
        assert_eq!(world.run(&["create", "--name", name]).status, 2, "{name}");
    }
    let id = world.create(&[]);
    let local = id.strip_prefix("local-eval/").unwrap();
    for name in [local, &local[..6]] {
        let outcome = world.run(&["create", "--json", "--name", name]);
        assert_eq!(outcome.status, 125, "{name}: {}", outcome.transcript());
        let error = &outcome.json()["error"];
        assert_eq!(error["kind"], "already_exists");
        assert!(error["message"].as_str().unwrap().contains(&id), "{error}");
    }
    assert_eq!(world.ids(), [id]);
}

#[test]
fn a_missing_sandbox_is_the_same_error_with_and_without_a_supervisor() {
    let world = World::new();
    let ask = || world.run(&["exec", "lab", "--json", "true"]).json()["error"].clone();
    let without = ask();
    assert!(world.supervisors().is_empty());
    world.create(&["--name", "other"]);
    assert_eq!(without, ask());
    assert_eq!(without["message"], "there is no sandbox lab");
}

/// The supervisor has the environment of the process that started it.
#[test]
fn the_environment_of_the_client_counts() {
    let world = World::new();
    let id = world.create(&[]);
    let none = "/nowhere/python3";
    let outcome = world.call(&["create"]).env("CODE_SANDBOXES_PYTHON", none).output();
    assert_eq!(outcome.status, 125, "{}", outcome.transcript());
    assert!(outcome.stderr.contains(none), "{}", outcome.transcript());
    let engine = "unix:///nowhere/engine.sock";
    let create = || world.call(&["create", "-p", "local-docker"]).env("DOCKER_HOST", engine);
    let outcome = create().output();
    assert_eq!(outcome.status, 125, "{}", outcome.transcript());
    assert!(
        outcome.stderr.contains("sandboxes of local-docker depend on that variable"),
        "{}",
        outcome.transcript()
    );
    assert_eq!(world.ids(), [id.as_str()]);
    // A supervisor without sandboxes is replaced.
    world.ok(&["rm", &id]);
    let outcome = create().output();
    assert!(outcome.stderr.contains("/nowhere/engine.sock"), "{}", outcome.transcript());
    assert!(!outcome.stderr.contains("supervisor"), "{}", outcome.transcript());
}
