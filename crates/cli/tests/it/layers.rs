//! The scan, the audit, masked secrets, the configuration, comparisons.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::e2b_server::Server;
use crate::support::{Outcome, run, sandboxes};

/// Runs the binary with a directory for configurations of its own.
fn configured<const N: usize>(directory: &Path, arguments: [&str; N]) -> Outcome {
    sandboxes(arguments).env("XDG_CONFIG_HOME", directory).env("SANDBOXES_PROFILE", "").output()
}

fn write_config(directory: &Path, text: &str, mode: u32) {
    let path = directory.join("sandboxes");
    fs::create_dir_all(&path).unwrap();
    let path = path.join("config.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn code_with_findings_is_refused_or_told() {
    let code = "import os\nprint('ran')\nstatus = os.system('true')";
    let refused = run(["--scan", "refuse", "--lang", "python", code]).output();
    assert_eq!((refused.status, refused.text()), (125, ""), "{}", refused.transcript());
    assert!(
        refused.stderr.contains("line 3: `os.system` starts a program (process)"),
        "{}",
        refused.stderr
    );
    let told = run(["--scan", "warn", "--lang", "python", code]).output();
    told.assert(0, "ran\n");
    assert!(told.stderr.contains("warning: scan: line 3:"), "{}", told.stderr);
    let json = run(["--scan", "warn", "--json", "--lang", "python", code]).output().json();
    assert_eq!(
        (&json["findings"][0]["line"], &json["findings"][0]["rule"]),
        (&3.into(), &"process".into())
    );
    run(["--scan", "refuse", "echo fine"]).output().assert(0, "fine\n");
    assert_eq!(run(["--scan", "refuse", "curl https://example.com"]).output().status, 125);
    // Programs for tools are looked at too, or refused where the scan does not know the language.
    let shell = run(["--scan", "refuse", "--lang", "bash", "curl x"]).output();
    assert_eq!(shell.status, 125, "{}", shell.transcript());
    let node = run(["--scan", "refuse", "--lang", "node", "1"]).output();
    assert!(node.stderr.contains("a program in node is not looked at"), "{}", node.transcript());
    let allowed = ["--scan", "refuse", "--allow-import", "math,json", "--lang", "python"];
    run([&allowed[..], &["import math; math.floor(1.5)"]].concat()).output().assert(0, "1\n");
    assert_eq!(run([&allowed[..], &["import os"]].concat()).output().status, 125);
    let usage = run(["--allow-import", "math", "true"]).output();
    assert_eq!(usage.status, 2, "{}", usage.transcript());
}

#[test]
fn an_audit_log_is_written_shown_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit");
    let log = log.to_str().unwrap();
    run(["--audit", log, "--lang", "python", "print('hi')"]).output().assert(0, "hi\n");
    let failed = run(["--audit", log, "exit 3"]).output();
    assert_eq!(failed.status, 3);
    let refused = run(["--audit", log, "--scan", "refuse", "kill 1"]).output();
    assert_eq!(refused.status, 125);

    let shown = sandboxes(["audit", "show", log]).output();
    assert_eq!(shown.status, 0, "{}", shown.transcript());
    let lines: Vec<_> = shown.text().lines().collect();
    let has =
        |parts: &[&str]| lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(
        has(&["local-eval/", "run_code", "ok"]) || has(&["run_code", "status 0"]),
        "{lines:#?}"
    );
    assert!(has(&["local-eval/", "create", "ok"]), "a create names what it made: {lines:#?}");
    assert!(has(&["start_command", "status 3"]), "{lines:#?}");
    assert!(has(&["start_command", "error:", "the scan refuses"]), "{lines:#?}");
    let runs =
        sandboxes(["audit", "show", log, "--operation", "run_code", "--json"]).output().json();
    assert_eq!(runs.as_array().unwrap().len(), 2, "a beginning and an end: {runs:#}");
    let last = sandboxes(["audit", "tail", log, "-n", "1"]).output();
    assert_eq!(last.text().lines().count(), 1);
    let whole = sandboxes(["audit", "verify", log]).output();
    assert!(whole.status == 0 && whole.text().contains("are whole"), "{}", whole.transcript());

    let path = Path::new(log).join("audit.jsonl");
    let text = fs::read_to_string(&path).unwrap().replace("\"exit_code\":3", "\"exit_code\":0");
    fs::write(&path, text).unwrap();
    let broken = sandboxes(["audit", "verify", log]).output();
    assert_eq!(broken.status, 1);
    assert!(broken.stderr.contains("was changed"), "{}", broken.stderr);
    assert_eq!(sandboxes(["audit", "verify", log, "--json"]).output().json()["whole"], false);
    let missing = sandboxes(["audit", "verify", "/nowhere/at/all"]).output();
    assert!(
        missing.status != 0 && missing.stderr.contains("there is no audit log"),
        "{}",
        missing.stderr
    );
}

#[test]
fn values_of_secret_variables_are_masked_on_request() {
    let secret = ["-e", "API_KEY=hunter2", "echo $API_KEY"];
    run(secret).output().assert(0, "hunter2\n");
    run(["--mask-secrets"].iter().chain(&secret)).output().assert(0, "***\n");
}

#[test]
fn a_configuration_has_profiles_and_keys() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let none = configured(at, ["config"]);
    assert!(none.status == 0 && none.text().contains("(not there)"), "{}", none.transcript());
    let text = "profile = 'careful'\n[defaults]\ntimeout = '20s'\n[profiles.careful]\nscan = 'refuse'\n\
                env = {GREETING = 'hello'}\n[profiles.quick]\ntimeout = '1s'\n[keys]\nE2B_API_KEY = 'from-the-file'\n";
    write_config(at, text, 0o600);
    configured(at, ["run", "echo $GREETING"]).assert(0, "hello\n");
    assert_eq!(configured(at, ["run", "curl x"]).status, 125);
    configured(at, ["run", "--scan", "off", "-e", "GREETING=other", "echo $GREETING"])
        .assert(0, "other\n");
    assert_eq!(configured(at, ["run", "--profile", "quick", "sleep 30"]).status, 124);
    configured(at, ["run", "--profile", "quick", "-t", "20", "sleep 2; echo late"])
        .assert(0, "late\n");

    let shown = configured(at, ["config"]);
    for part in ["careful, quick", "E2B_API_KEY", "refuse", "20s"] {
        assert!(shown.text().contains(part), "{part}: {}", shown.transcript());
    }
    assert!(!shown.transcript().contains("from-the-file") && !shown.transcript().contains("hello"));
    assert_eq!(configured(at, ["config", "--json"]).json()["settings"]["timeout"], "20s");

    let unknown = configured(at, ["run", "--profile", "x", "true"]);
    assert_eq!(unknown.status, 2);
    assert!(
        unknown.stderr.contains("no profile \"x\"; it has careful, quick"),
        "{}",
        unknown.stderr
    );
    write_config(at, text, 0o644);
    let open = configured(at, ["run", "true"]);
    assert!(open.status == 2 && open.stderr.contains("chmod 600"), "{}", open.transcript());
    for (wrong, problem) in [
        ("[profiles.a]\ntimeuot = '1s'\n", "unknown field `timeuot`"),
        ("[defaults\n", "near line 1"),
        ("[defaults]\nisolation = 'none'\n", "`isolation` of the configuration"),
        ("[defaults]\ntimeout = 'soon'\n", "`timeout` of the configuration"),
    ] {
        write_config(at, wrong, 0o600);
        let outcome = configured(at, ["run", "true"]);
        assert_eq!(outcome.status, 2, "{wrong}: {}", outcome.transcript());
        assert!(outcome.stderr.contains(problem), "{wrong}: {}", outcome.stderr);
    }
}

#[test]
fn a_chain_goes_on_over_wrong_and_missing_keys_and_names_each() {
    let server = Server::start(&[]);
    let home = tempfile::tempdir().unwrap();
    let chain = |first: &str, others: &str, key: &str| {
        let call = run(["-p", first, "--fallback", others, "echo made"]).env("E2B_API_KEY", key);
        let call = server
            .environment()
            .into_iter()
            .skip(1)
            .fold(call, |call, (name, value)| call.env(name, value));
        let no_keys = ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "DAYTONA_API_KEY"];
        let call = no_keys.iter().fold(call, |call, name| call.env(name, ""));
        // No configuration of the providers either.
        call.env("HOME", home.path()).output()
    };
    let failed = chain("modal", "e2b,daytona", "e2b_wrong");
    assert_eq!((failed.status, failed.text()), (125, ""), "{}", failed.transcript());
    let reasons: Vec<_> = failed.stderr.lines().next().unwrap().split("; ").collect();
    for (place, reason) in [
        ("modal: ", "there is no token"),
        ("e2b: ", "Invalid API key"),
        ("daytona: ", "there is no Daytona API key"),
    ] {
        let is_there = reasons.iter().any(|one| one.contains(place) && one.contains(reason));
        assert!(is_there, "{place}{reason}: {}", failed.stderr);
    }
    assert!(failed.stderr.contains("hint: set MODAL_TOKEN_ID"), "{}", failed.stderr);
    assert!(!failed.stderr.contains("e2b_wrong"), "a key is in no error: {}", failed.stderr);
    chain("modal", "e2b,local-eval", "e2b_wrong").assert(0, "made\n");
    // The control: with its key the second place makes it.
    let used = chain("modal", "e2b", &server.key);
    used.assert(0, "made\n");
    assert!(used.stderr.contains("one of e2b: modal has not made it"), "{}", used.stderr);
    assert_eq!(server.end(), 0);
}

#[test]
fn variants_are_compared() {
    let table = sandboxes(["test", "-p", "local-eval,local-eval"]).output();
    assert_eq!((table.status, table.text()), (0, ""), "{}", table.transcript());
    assert!(table.stderr.contains("alike in"), "{}", table.stderr);
    let json = sandboxes(["test", "-p", "local-eval,local-eval", "--json"]).output().json();
    let answer = |check: &str| {
        let all = json.as_array().unwrap();
        all.iter().find(|row| row["check"] == check).unwrap()["answers"]["local-eval"].clone()
    };
    for (check, expected) in [
        ("value of a cell", "42"),
        ("exception", "ZeroDivisionError"),
        ("status of sys.exit", "exit 3"),
        ("variables are kept", "42"),
        ("connections to the internet", "'closed'"),
        ("status of a command", "status 3"),
        ("file read back", "the same"),
        ("file that is missing", "not_found"),
        ("time limit of code", "timeout, state kept"),
        ("end of the interpreter", "kernel_died, state lost"),
    ] {
        assert_eq!(answer(check), expected, "{check}");
    }
}
