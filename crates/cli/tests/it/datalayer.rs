//! Cloud runtimes from the command line, against a control plane in this test.

#[path = "../../../backend-datalayer/tests/support/mod.rs"]
#[expect(dead_code, reason = "tests of the backend ask more of the control plane")]
mod control;

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use control::ControlPlane;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::{Outcome, sandboxes};

/// Runs the binary with a key for that control plane, and a home of its own.
fn reported(plane: &ControlPlane, home: &Path, arguments: &[&str]) -> Outcome {
    sandboxes(arguments)
        .env("DATALAYER_API_KEY", &plane.key)
        .env("DATALAYER_RUN_URL", &plane.url)
        .env("XDG_STATE_HOME", home)
        .output()
}

#[test]
fn a_runtime_is_made_used_and_ended() {
    let Some(plane) = ControlPlane::speaking("both", 0) else { return };
    let home = tempfile::tempdir().unwrap();
    let on = |arguments: &[&str]| reported(&plane, home.path(), arguments);
    let doctor = on(&["doctor", "-p", "datalayer-runtime"]);
    assert_eq!(doctor.status, 0, "{}", doctor.transcript());
    assert!(doctor.text().contains("an API key from DATALAYER_API_KEY"), "{}", doctor.text());
    assert!(!doctor.transcript().contains(&plane.key));
    let environments = on(&["environments", "-p", "datalayer", "--json"]).json();
    assert_eq!(environments[1]["gpu_count"], 1);
    assert_eq!(environments[1]["metadata"]["credits_per_hour"], 36.0);

    let table = on(&["environments", "-p", "datalayer"]).text().to_owned();
    let gpu = table.lines().find(|line| line.contains("python-gpu-env")).unwrap();
    let facts = ["16Gi", "1 of unknown type", "36.00"];
    assert!(
        table.contains("Credits/hour") && facts.iter().all(|fact| gpu.contains(fact)),
        "{table}"
    );

    on(&["run", "-p", "datalayer-runtime", "--lang", "python", "6 * 7"]).assert(0, "42\n");
    assert_eq!(
        plane.runtimes(),
        Vec::<serde_json::Value>::new(),
        "what is for one run ends with it"
    );

    let made = on(&[
        "create",
        "-p",
        "datalayer",
        "--gpu",
        "A100",
        "--environment",
        "python-gpu-env",
        "--name",
        "trainer",
        "--label",
        "team=a",
        "--lifetime",
        "600",
    ]);
    assert_eq!(made.status, 0, "{}", made.transcript());
    let id = made.text().trim().to_owned();
    assert!(id.starts_with("datalayer-runtime/"), "{id}");
    let listed = on(&["ls", "-p", "datalayer-runtime", "--json"]).json();
    assert_eq!((&listed[0]["id"], &listed[0]["name"]), (&json!(id), &json!("trainer")));
    assert_eq!(listed[0]["labels"], json!({"team": "a"}));
    on(&["exec", &id, "--lang", "python", "x = 41"]).assert(0, "");
    on(&["exec", "-p", "datalayer", "trainer", "--lang", "python", "x + 1"]).assert(0, "42\n");
    let taken = on(&["snapshot", "create", &id, "prepared"]);
    assert_eq!(taken.status, 0, "{}", taken.transcript());
    let snapshots = on(&["snapshot", "ls", "-p", "datalayer", "--json"]).json();
    assert_eq!(snapshots[0]["name"], "prepared");
    let from = ["run", "-v", "-p", "datalayer", "--snapshot", "prepared", "--lang", "python", "x"];
    let ran = on(&from);
    assert_eq!((ran.status, ran.text()), (0, "41\n"), "{}", ran.transcript());
    assert!(ran.stderr.contains("the runtime is ready"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("hyper"), "{}", ran.stderr);
    // The provider tells its price, and no other figures.
    let cost = on(&["metrics", &id, "--json"]).json();
    assert!(cost[0]["cost"]["per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{cost}");
    assert!(on(&["metrics", &id]).text().contains("Credits"));
    on(&["pause", &id]).assert(0, "");
    assert_eq!(on(&["ls", "-p", "datalayer-runtime", "--json"]).json()[0]["state"], "paused");
    let held = on(&["exec", &id, "--lang", "python", "x"]);
    assert!(held.stderr.contains("sandboxes resume"), "{}", held.transcript());
    assert_eq!(on(&["resume", &id, "--json"]).json(), json!({"resumed": [id]}));
    on(&["exec", &id, "--lang", "python", "x"]).assert(0, "41\n");
    assert_eq!(on(&["snapshot", "rm", "-p", "datalayer", "prepared"]).status, 0);
    // `--all` without a variant means the sandboxes of this host.
    assert_eq!(on(&["rm", "--all"]).status, 0);
    assert_eq!(plane.runtimes().len(), 1);
    let removed = on(&["rm", &id]);
    assert_eq!(removed.status, 0, "{}", removed.transcript());
    assert_eq!(plane.runtimes(), Vec::<serde_json::Value>::new());
}

/// A requested runtime costs money even when its creation was interrupted.
#[test]
fn a_create_that_is_interrupted_leaves_nothing() {
    let Some(plane) = ControlPlane::speaking("both", 0) else { return };
    let home = tempfile::tempdir().unwrap();
    let slow_answer =
        json!({"fault": {"method": "POST", "path": "/v1/runtimes", "delay": 1, "count": 1}});
    let slow_start = json!({"start_delay": 30});
    let (create, run) =
        (&["create", "--lifetime", "600"][..], &["run", "--lang", "python", "1"][..]);
    for (slow, signal, status) in [
        (slow_answer, Signal::INT, 130),
        (slow_start, Signal::INT, 130),
        (json!({}), Signal::TERM, 143),
        (json!({}), Signal::QUIT, 131),
    ] {
        for arguments in [create, run] {
            plane.tell(&slow);
            let call = sandboxes([arguments, &["-p", "datalayer"]].concat().as_slice())
                .env("DATALAYER_API_KEY", &plane.key)
                .env("DATALAYER_RUN_URL", &plane.url)
                .env("XDG_STATE_HOME", home.path());
            let asked = plane.requests().len();
            let mut child = call.spawn();
            let is_create = |request: &String| request == "POST /api/runtimes/v1/runtimes";
            while !plane.requests()[asked..].iter().any(is_create) {
                std::thread::sleep(Duration::from_millis(20));
            }
            std::thread::sleep(Duration::from_millis(300));
            let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
            kill_process(pid, signal).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(status), "{arguments:?}");
            assert_eq!(plane.runtimes(), Vec::<serde_json::Value>::new(), "{arguments:?} {slow}");
        }
    }
}

#[test]
fn an_invalid_key_is_reported() {
    let Some(plane) = ControlPlane::speaking("both", 0) else { return };
    let listed = sandboxes(["ls", "-p", "datalayer-runtime", "--json"])
        .env("DATALAYER_API_KEY", "")
        .env("DATALAYER_EXTERNAL_TOKEN", &plane.key)
        .env("DATALAYER_RUN_URL", &plane.url)
        .output();
    assert_eq!(listed.json(), json!([]));
    assert_eq!(plane.sent()[0]["headers"]["x-external-token"], plane.key.as_str());
}

#[test]
fn without_a_key_other_variants_work_and_the_error_has_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let on = |arguments: &[&str]| {
        let mut call = sandboxes(arguments);
        for name in [
            "DATALAYER_API_KEY",
            "TEST_DATALAYER_API_KEY",
            "DATALAYER_EXTERNAL_TOKEN",
            "DBUS_SESSION_BUS_ADDRESS",
        ] {
            call = call.env(name, "");
        }
        call.env("HOME", home.path()).output()
    };
    let all = on(&["environments"]);
    assert_eq!((all.status, all.stderr.as_str()), (0, ""), "{}", all.transcript());
    let refused = on(&["run", "-p", "datalayer", "--lang", "python", "1"]);
    assert_eq!(refused.status, 125);
    assert!(refused.stderr.contains("DATALAYER_API_KEY"), "{}", refused.stderr);
    assert_eq!(on(&["doctor", "-p", "datalayer"]).status, 1);
}

/// A process that is killed cannot end its runtime; a later one can.
#[test]
fn what_a_killed_process_leaves_is_reaped() {
    let Some(plane) = ControlPlane::speaking("both", 0) else { return };
    let home = tempfile::tempdir().unwrap();
    let on = |arguments: &[&str]| reported(&plane, home.path(), arguments);
    let owned = on(&["create", "-p", "datalayer", "--lifetime", "600"]);
    assert_eq!(owned.status, 0, "{}", owned.transcript());
    let run = [
        "run",
        "-p",
        "datalayer",
        "--lang",
        "python",
        "print('begun', flush=True); import time; time.sleep(100)",
    ];
    let mut call = sandboxes(run)
        .env("DATALAYER_API_KEY", &plane.key)
        .env("DATALAYER_RUN_URL", &plane.url)
        .env("XDG_STATE_HOME", home.path())
        .spawn();
    let mut begun = [0; 5];
    call.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
    assert_eq!(plane.runtimes().len(), 2);
    let early = on(&["reap", "-p", "datalayer", "--json"]).json();
    assert_eq!(early["sandboxes"], json!([]), "its owner lives");

    call.kill().unwrap();
    call.wait().unwrap();
    assert_eq!(plane.runtimes().len(), 2, "the provider does not notice");
    let dry = on(&["reap", "--dry-run", "--json"]).json();
    assert_eq!(
        (dry["sandboxes"].as_array().unwrap().len(), &dry["sandboxes"][0]["ended"]),
        (1, &json!(false)),
        "{dry}"
    );
    assert_eq!(plane.runtimes().len(), 2, "nothing was ended");
    let reaped = on(&["reap", "-p", "datalayer"]);
    assert_eq!(reaped.status, 0, "{}", reaped.transcript());
    assert!(reaped.text().contains("its process is gone"), "{}", reaped.text());
    assert_eq!(plane.runtimes().len(), 1, "the one that was created to stay stays");
    assert!(on(&["reap", "-p", "datalayer"]).stderr.contains("no sandbox is without an owner"));
    assert_eq!(on(&["rm", owned.text().trim()]).status, 0);
}
