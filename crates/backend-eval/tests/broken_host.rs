//! A host in disorder: a sandbox needs little of it, and what it lacks is named.
//!
//! Each test runs this program again in surroundings that are broken.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use backend_eval::EvalBackend;
use sandbox_core::{ErrorKind, IsolationMode, Sandbox, SandboxBuilder, SingleBackend};

const INSIDE: &str = "SANDBOX_TEST_BROKEN_HOST";

fn builder() -> SandboxBuilder<SingleBackend> {
    let builder = Sandbox::builder(Arc::new(EvalBackend::default()));
    match std::env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => builder.provider_option("python", python),
        Err(_) => builder.provider_option("python", "/usr/bin/python3"),
    }
}

async fn works() {
    let sandbox = builder().create().await.expect("a sandbox");
    let code = "import os, tempfile\nopen('f', 'w').write('x'); tempfile.mkdtemp()\noct(os.stat('f').st_mode)";
    let result = sandbox.run_code(code).await.expect("a result");
    assert_eq!(result.text(), Some("'0o100644'"), "{result:?}");
    assert_eq!(sandbox.files().read_text("f").await.expect("a file"), "x");
    let command = sandbox.commands().run("cat f").await.expect("a command");
    assert_eq!(command.stdout, "x", "{command:?}");
    sandbox.terminate().await.expect("an end");
}

/// Nothing that a strict sandbox needs is a place for files, a home, a terminal, or a directory to stand in.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_needs_little_of_its_host() {
    if std::env::var_os(INSIDE).is_some() {
        return works().await;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let full = Path::new("/dev/full");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("file"), "").expect("a file");
    fs::create_dir(path("closed")).expect("a directory");
    fs::set_permissions(path("closed"), fs::Permissions::from_mode(0o000)).expect("a mode");
    let (file, closed, gone) = (path("file"), path("closed"), path("gone"));
    let setups = [
        "umask 777; exec \"$0\" \"$@\"".to_owned(),
        "umask 000; exec \"$0\" \"$@\"".to_owned(),
        format!("mkdir {gone}; cd {gone}; rmdir {gone}; exec \"$0\" \"$@\""),
        format!(
            "TMPDIR={file} XDG_RUNTIME_DIR={file} XDG_CACHE_HOME={file} HOME={file} exec \"$0\" \"$@\""
        ),
        format!(
            "TMPDIR={closed} XDG_RUNTIME_DIR={closed} XDG_CACHE_HOME={closed} HOME={closed} exec \"$0\" \"$@\""
        ),
        format!("TMPDIR={gone} XDG_CACHE_HOME={0} HOME= exec \"$0\" \"$@\"", full.display()),
        "unset HOME TMPDIR XDG_RUNTIME_DIR XDG_CACHE_HOME USER LANG TERM; exec \"$0\" \"$@\""
            .to_owned(),
        "trap '' HUP INT QUIT TERM CHLD PIPE USR1 USR2; exec \"$0\" \"$@\"".to_owned(),
        "exec 0<&-; exec \"$0\" \"$@\"".to_owned(),
        "LC_ALL=xx_XX.bad LANG=C PYTHONHOME=/nowhere PYTHONPATH=/nowhere PYTHONSTARTUP=/nowhere \
         PYTHONIOENCODING=utf-16 LD_BIND_NOW=1 PYTHONDEVMODE=1 exec \"$0\" \"$@\""
            .to_owned(),
    ];
    let own = std::env::current_exe().expect("this program");
    for setup in setups {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&setup).arg(&own);
        command.args(["--exact", "a_sandbox_needs_little_of_its_host"]).env(INSIDE, "1");
        let output = command.output().expect("this program again");
        let told =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.contains("1 passed"), "{setup}: {told}");
    }
}

/// What is given as an interpreter and is none: told at create, with its name, and soon.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_python_is_named() {
    let folder = tempfile::tempdir().expect("a directory");
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        path.display().to_string()
    };
    std::os::unix::fs::symlink("/nowhere/python3", folder.path().join("dangling")).expect("a link");
    std::os::unix::fs::symlink("circle", folder.path().join("circle")).expect("a link");
    let own = |name: &str| folder.path().join(name).display().to_string();
    let none = [
        script("says-nothing", "#!/bin/sh\nexit 0\n"),
        script("fails", "#!/bin/sh\nexit 3\n"),
        script("talks", "#!/bin/sh\nwhile :; do echo Python 3.99; done\n"),
        script("is-old", "#!/bin/sh\necho 'Python 2.7.18'\n"),
        script("is-empty", ""),
        script("is-binary", "\u{1}\u{2}\u{3}"),
        own("dangling"),
        own("circle"),
        own("missing"),
        folder.path().display().to_string(),
        "/bin/true".to_owned(),
        "/bin/cat".to_owned(),
        "/dev/null".to_owned(),
        String::new(),
    ];
    for mode in [IsolationMode::Strict, IsolationMode::Off] {
        for python in &none {
            let create =
                builder().isolation(mode).provider_option("python", python.as_str()).create();
            let answer = tokio::time::timeout(Duration::from_secs(20), create.into_future()).await;
            let error = answer.unwrap_or_else(|_| panic!("{python:?} hangs")).expect_err(python);
            assert!(error.kind() != ErrorKind::Unexpected, "{python:?}: {error:?}");
            let name = Path::new(python).file_name().unwrap_or_default().to_string_lossy();
            let told = format!("{error} {error:?}");
            assert!(told.contains(&*name), "{python:?} is not named: {told}");
        }
    }
}
