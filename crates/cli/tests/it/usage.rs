//! Usage errors: refused before any code runs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::support::{binary, planned, run, sandboxes};

#[test]
fn wrong_usage_is_refused_with_status_2() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("x.py");
    std::fs::write(&script, "print(1)").unwrap();
    let script = script.to_str().unwrap();
    for (arguments, message) in [
        (
            &["--lang", "python", "code", "--file", script][..],
            "inline code takes no arguments|code and --file",
        ),
        (&["--lang", "python", "--file", script, "code"], "code and --file exclude each other"),
        (&["--file", "/nonexistent/x.py"], "/nonexistent/x.py cannot be read"),
        (&["--file", "/etc/hostname"], "language of /etc/hostname is unknown"),
        (&["--lang", "cobol", "x"], "known languages are python, node"),
        (&["ls -la", "/tmp"], "a line for the shell takes no arguments"),
        (&["ls -la", "--", "/tmp"], "a line for the shell takes no arguments"),
        (&["ls -la", "--no-such-flag"], "unexpected argument '--no-such-flag'"),
        (&["--no-such-flag", "ls"], "unexpected argument '--no-such-flag'"),
        (&["--lang", "python", "1", "--", "a"], "inline code takes no arguments"),
        (&["--lang", "python", "1", "a"], "inline code takes no arguments"),
        (&["-e", "=x", "ls"], "without a name"),
        (&["-e", "A B=1", "ls"], "\"A B\" is not a name"),
        (&["-e", "1A=1", "ls"], "\"1A\" is not a name"),
        (&["--file", "."], ". cannot be read: is a directory"),
        (&["-e", "NOT_SET_ANYWHERE", "ls"], "`NOT_SET_ANYWHERE` has no value"),
        (&["-l", "novalue", "ls"], "is not KEY=VALUE"),
        (&["--option", "novalue", "ls"], "--option `novalue` is not KEY=VALUE"),
        (&["--option", "no_such=1", "ls"], "no_such"),
        (&["-t", "0", "ls"], "`timeout` must be more than 0"),
        (&["-t", "-1", "ls"], "`timeout` must be more than 0"),
        (&["-t", "nan", "ls"], "`timeout` must be a finite number"),
        (&["-t", "soon", "ls"], "500ms, 90s, 5m"),
        (&["--memory", "1.5g", "ls"], "is not a size"),
        (&["--memory", "1k", "ls"], "`memory` must be from"),
        (&["--cpus", "-1", "ls"], "`cpu` must be from"),
        (&["--mount", "/srv", "ls"], "is not SRC:DST"),
        (
            &["--mount", "data:/data", "ls"],
            "`mounts` has the source \"data\", which is not absolute",
        ),
        (&["--mount", "/srv:/proc", "ls"], "`mounts` has the target \"/proc\""),
        (&["--mount", "/etc:/data", "ls"], "nothing of /etc is given to code"),
        (&["--output-limit", "0", "ls"], "`0` is not a size"),
        (&["--open-files", "3", "ls"], "`open_files` must be from 128 to"),
        (&["--disk-files", "1", "ls"], "`disk_files` must be at least 1024"),
        (&["--processes", "0", "ls"], "`processes` must be at least 4, got 0"),
        (&["--processes", "1", "ls"], "`processes` must be at least 4, got 1"),
        (&["--lifetime", "1e-9", "ls"], "`lifetime` must be from 0.1 to"),
        (&["--lifetime", "inf", "ls"], "`lifetime` must be a finite"),
        (&["--idle-timeout", "0", "ls"], "`idle_timeout` must be more than 0"),
        (&["--isolation", "soft", "ls"], "is not one of strict, best-effort, off"),
        (&["--network", "some", "ls"], "is not one of inherit, none, allowlist, all"),
        (&["--network", "allowlist", "ls"], "without any host"),
        (&["--network", "none", "--allow", "pypi.org", "ls"], "only allowed with `allowlist`"),
        (&["--network", "all", "--allow", "pypi.org", "ls"], "only allowed with `allowlist`"),
        (&["--pull", "--image", "x", "ls"], "images of a container engine"),
        (&["-p", "local-docker", "--pull", "ls"], "--pull needs an image"),
        (&["--network", "all", "--deny", "*.com", "ls"], "has the pattern"),
        (&["--network", "allowlist", "--allow", "a b", "ls"], "`allow` has the pattern"),
        (&["--environment", "a b", "ls"], "`environment` must be"),
        (&["-p", "nowhere", "ls"], "supported variants: local-eval"),
        (&["--json", "--stream-json", "ls"], "cannot be used with"),
        (&["--deps", "ls"], "--deps is for programs"),
        (&["--deps", "--lang", "python", "1"], "--deps is not for python"),
    ] {
        let outcome = run(arguments).output();
        let reported = format!("{}{}", outcome.text(), outcome.stderr);
        let expected = message.split('|').any(|message| reported.contains(message));
        assert!(expected, "{arguments:?}: {reported}");
        assert_eq!(outcome.status, 2, "{arguments:?}: {reported}");
    }
}

#[test]
fn nothing_to_run_is_an_error() {
    insta::assert_snapshot!(run([""; 0]).output().transcript(), @"
    status 2
    [stdout]
    [stderr]
    sandboxes: error: no command is given, and the language of the code on standard input is unknown
    sandboxes: hint: give the language with --lang: python, node, typescript, go, rust, bash, sh, kernel
    ");
}

#[test]
fn variants_that_this_build_lacks_are_failures_of_sandboxes() {
    for variant in planned() {
        let variant = variant.as_str();
        let transcript = run(["-p", variant, "ls"]).output().transcript();
        insta::allow_duplicates! {
            insta::assert_snapshot!(transcript.replace(variant, "NAME"), @"
            status 125
            [stdout]
            [stderr]
            sandboxes: error: this version has no NAME backend
            sandboxes: hint: it is not written yet; choose another variant
            ");
        }
        for arguments in [
            ["run", "--json", "-p", variant, "ls"].as_slice(),
            &["environments", "--json", "-p", variant],
        ] {
            let outcome = sandboxes(arguments).output();
            assert_eq!(
                (outcome.status, &outcome.json()["error"]["kind"]),
                (125, &"unsupported".into())
            );
        }
    }
}

#[test]
fn unenforceable_limits_are_refused() {
    let outcome = run(["--gpu", "T4", "ls"]).output();
    insta::assert_snapshot!(outcome.transcript(), @"
    status 125
    [stdout]
    [stderr]
    sandboxes: error: `gpu` cannot be enforced by this variant
    sandboxes: hint: leave it out, or choose a variant that has it: `sandboxes providers` lists them
    ");
}

#[test]
fn errors_are_json_when_json_is_asked_for() {
    let cases = [
        (&["run", "--json", "--gpu", "T4", "ls"][..], 125, "unsupported"),
        (&["run", "--json", "-t", "0", "ls"], 2, "invalid_argument"),
        (&["run", "--stream-json", "-t", "0", "ls"], 2, "invalid_argument"),
        (&["run", "--json", "--no-such-flag"], 2, "invalid_argument"),
        (&["--json", "no-such-command"], 2, "invalid_argument"),
        (&["run", "--json", "--file", "/nonexistent/x.py"], 2, "invalid_argument"),
        (&["doctor", "--json", "-p", "nowhere"], 2, "invalid_argument"),
    ];
    for (arguments, status, kind) in cases {
        let outcome = sandboxes(arguments).output();
        assert_eq!(outcome.status, status, "{arguments:?}: {outcome:?}");
        let error = &outcome.json()["error"];
        assert_eq!(error["kind"], kind, "{arguments:?}");
        assert_eq!(error["retryable"], false, "{arguments:?}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
        assert!(error.as_object().unwrap().contains_key("hint"), "{error}");
        assert_eq!(outcome.stderr, "", "{arguments:?}");
    }
}

#[test]
fn an_argument_that_is_not_utf8_is_named() {
    let outcome = run([OsStr::new("echo"), OsStr::from_bytes(b"caf\xe9")]).output();
    assert_eq!(outcome.status, 2, "{outcome:?}");
    assert!(outcome.stderr.contains(r#"not UTF-8 text: "caf\xE9""#), "{}", outcome.stderr);
}

#[test]
fn too_much_code_is_refused_with_the_name_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("big.py");
    for (bytes, message) in
        [(60 << 20, ""), ((60 << 20) + 1, "big.py has more than 60 MiB of code")]
    {
        std::fs::write(&path, vec![b'#'; bytes]).unwrap();
        let outcome = run([OsStr::new("--file"), path.as_os_str()]).output();
        assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
        assert_eq!(outcome.status, if message.is_empty() { 0 } else { 2 }, "{}", outcome.stderr);
    }
}

#[test]
fn errors_in_a_stream_have_a_type() {
    for arguments in
        [&["run", "--stream-json", "-t", "0", "ls"][..], &["run", "--stream-json", "--bad"]]
    {
        let outcome = sandboxes(arguments).output();
        assert_eq!(outcome.json()["type"], "error", "{outcome:?}");
        assert_eq!(outcome.json()["error"]["kind"], "invalid_argument");
    }
    let outcome = sandboxes(["run", "--json", "-t", "0", "ls"]).output();
    assert!(outcome.json().get("type").is_none(), "{outcome:?}");
}

#[test]
fn python_is_found_without_a_path() {
    let mut command = std::process::Command::new(binary());
    let output = command.args(["run", "--lang", "python", "6 * 7"]).env_clear().output().unwrap();
    if ["/usr/local/bin/python3", "/usr/bin/python3"].iter().any(|path| Path::new(path).exists()) {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n", "{output:?}");
    } else {
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("PATH is not set"), "{output:?}");
    }
}

#[test]
fn secrets_of_bad_items_are_not_repeated() {
    let outcome = run(["-e", "=hunter2", "ls"]).output();
    assert!(!outcome.stderr.contains("hunter2"), "{}", outcome.stderr);
}
