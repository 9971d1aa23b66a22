//! Kernels that are forked from a warm interpreter, and when they are not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use backend_jupyter::{JupyterBackend, JupyterConfig};
use sandbox_core::{
    FailureKind, IsolationMode, Mount, Sandbox, SandboxBuilder, SingleBackend, SingleUse,
};
use serde_json::Value;
use tempfile::TempDir;

use super::support::{config, interpreter};

const SURROUNDINGS: &str = include_str!("surroundings.py");

fn builder() -> Option<SandboxBuilder<SingleBackend>> {
    interpreter()?;
    Some(Sandbox::builder(Arc::new(JupyterBackend::new(config()))))
}

/// The parent of a forked kernel is the warm interpreter, which is outside of the cell: nobody there has a number for it.
async fn is_forked(sandbox: &Sandbox) -> bool {
    let parent = sandbox.run_code("import os; os.getppid()").await.unwrap();
    match parent.text() {
        Some("0") => true,
        Some("1") => false,
        _ => panic!("{parent:?}"),
    }
}

async fn surroundings(sandbox: &Sandbox) -> BTreeMap<String, Value> {
    let found = sandbox.run_code(SURROUNDINGS).await.unwrap();
    // It interrupts itself.
    assert!(found.code_error.is_none(), "{:?}", found.code_error);
    serde_json::from_str(&found.stdout_trimmed()).unwrap()
}

#[tokio::test]
async fn a_forked_kernel_is_as_a_fresh_one() {
    if interpreter().is_none() {
        return;
    }
    let backend = Arc::new(JupyterBackend::new(config()));
    let kernel = async |warm: bool| {
        let builder = Sandbox::builder(Arc::<JupyterBackend>::clone(&backend));
        builder.provider_option("warm", warm).create().await.unwrap()
    };
    let (forked, fresh) = (kernel(true).await, kernel(false).await);
    assert!(is_forked(&forked).await && !is_forked(&fresh).await);
    let (forked, fresh) = (surroundings(&forked).await, surroundings(&fresh).await);
    let different: Vec<_> = fresh
        .iter()
        .filter_map(|(name, value)| Some((name, difference(&forked[name], value)?)))
        .map(|(name, [forked, fresh])| format!("{name}:\n  forked {forked:?}\n  fresh  {fresh:?}"))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// What is in one of two alone.
fn difference(one: &Value, other: &Value) -> Option<[Vec<Value>; 2]> {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let without = |of: &Value, others: &Value| {
        let others = items(others);
        items(of).into_iter().filter(|item| !others.contains(item)).collect()
    };
    (one != other).then(|| [without(one, other), without(other, one)])
}

/// What is kept of a fork is in no other one.
#[tokio::test]
async fn forked_kernels_share_nothing_that_is_random() {
    let Some(builder) = builder() else { return };
    let sandbox = builder.create().await.unwrap();
    let code = "import random, tempfile, uuid, secrets, os
from zmq import Context
[random.random(), tempfile.mktemp(), str(uuid.uuid4()), str(uuid.uuid1()), secrets.token_hex(8),
 get_ipython().kernel.session.session, get_ipython().kernel.ident]";
    let mut drawn = Vec::new();
    for name in ["one", "two"] {
        let context = sandbox.create_context(Some(name)).await.unwrap();
        let result = sandbox.run_code(code).context(&context.id).await.unwrap();
        let text = result.text().unwrap_or_else(|| panic!("{result:?}"));
        drawn.push(text.split(", ").map(str::to_owned).collect::<Vec<_>>());
    }
    for (one, two) in drawn[0].iter().zip(&drawn[1]) {
        assert_ne!(one, two);
    }
}

/// What a user does with a kernel.
#[tokio::test]
async fn a_forked_kernel_is_interrupted_restarted_killed_and_ends() {
    let Some(builder) = builder() else { return };
    let sandbox = builder.create().await.unwrap();
    let late = sandbox
        .run_code("x = 1\nwhile True: pass")
        .timeout(Duration::from_millis(500))
        .await
        .unwrap();
    assert_eq!(late.failure.as_ref().map(|it| it.kind), Some(FailureKind::Timeout), "{late:?}");
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("1"));
    let ended = sandbox.run_code("import os; os._exit(7)").await.unwrap();
    assert_eq!(ended.exit_code, Some(7), "{ended:?}");
    assert!(is_forked(&sandbox).await);
    let killed = sandbox.run_code("import os; os.kill(os.getpid(), 11)").await.unwrap();
    let failure = killed.failure.unwrap();
    assert!(failure.message.contains("SIGSEGV"), "{failure:?}");
    sandbox.restart_context("default").await.unwrap();
    assert!(is_forked(&sandbox).await);
}

#[tokio::test]
async fn what_a_variable_would_change_is_a_fresh_kernel() {
    if interpreter().is_none() {
        return;
    }
    let backend = Arc::new(JupyterBackend::new(config()));
    for (name, value, expected) in [
        ("MINE", "1", true),
        ("PYTHONHASHSEED", "7", false),
        ("PYTHONPATH", "/workspace", false),
        ("LC_ALL", "C", false),
        ("LANG", "C", false),
        ("LD_LIBRARY_PATH", "/workspace", false),
        ("TZ", "UTC", false),
        ("OMP_NUM_THREADS", "1", false),
        ("HOME", "/tmp", false),
        ("TERM", "xterm", false),
        ("IPYTHON_SUPPRESS_CONFIG_ERRORS", "1", false),
    ] {
        let builder = Sandbox::builder(Arc::<JupyterBackend>::clone(&backend));
        let sandbox = builder.env(name, value).create().await.unwrap();
        assert_eq!(is_forked(&sandbox).await, expected, "{name}");
        let code =
            format!("open('/proc/self/environ').read().split('\\0').count('{name}={value}')");
        assert_eq!(sandbox.run_code(code).await.unwrap().text(), Some("1"), "{name}");
    }
}

#[tokio::test]
async fn without_a_cell_or_for_a_single_use_it_is_a_fresh_kernel() {
    let Some(off) = builder() else { return };
    let off = off.isolation(IsolationMode::Off).create().await.unwrap();
    let parent = off.run_code("import os; open(f'/proc/{os.getppid()}/comm').read()").await;
    let parent = parent.unwrap();
    assert!(!parent.text().unwrap().contains("python"), "{parent:?}");
    let single = builder().unwrap().single_use(SingleUse::Code);
    assert!(!is_forked(&single.create().await.unwrap()).await);
}

#[tokio::test]
async fn a_mount_over_its_modules_is_a_fresh_kernel() {
    let Some(python) = interpreter() else { return };
    let (beside, prefix) = (TempDir::new().unwrap(), prefix_of(&python));
    let itself = Mount::new(&prefix, prefix.to_string_lossy());
    let sandbox = builder().unwrap().mount(itself).create().await.unwrap();
    assert!(!is_forked(&sandbox).await);
    let sandbox = builder().unwrap().mount(Mount::new(beside.path(), "/data"));
    assert!(is_forked(&sandbox.create().await.unwrap()).await);
}

fn prefix_of(python: &Path) -> PathBuf {
    python.parent().and_then(Path::parent).unwrap().to_path_buf()
}

/// What stands in the way of a fork, as a file among the packages.
#[tokio::test]
async fn what_cannot_be_forked_is_a_fresh_kernel() {
    let Some(python) = interpreter() else { return };
    for (file, content, is_forked_then) in [
        ("nothing.pth", "import sys", true),
        ("sitecustomize.py", "import sys; sys.customized = True", false),
        (
            "thread.pth",
            "import threading, time; threading.Thread(target=time.sleep, args=(1,), daemon=True).start()",
            false,
        ),
        ("end.pth", "import os; os.environ.get('PYTHONPATH') and os._exit(3)", false),
        ("numpy.pth", "import numpy", false),
    ] {
        let copy = Copy::of_prefix(&python);
        fs::write(copy.packages().join(file), content).unwrap();
        let sandbox = copy.sandbox().await;
        assert_eq!(is_forked(&sandbox).await, is_forked_then, "{file}");
        let result = sandbox.run_code("import sys; hasattr(sys, 'customized')").await.unwrap();
        let customized = file.starts_with("sitecustomize");
        assert_eq!(result.text(), Some(if customized { "True" } else { "False" }), "{file}");
    }
}

/// Where packages of the user count, and code has installed some.
#[tokio::test]
async fn packages_of_the_user_are_a_fresh_kernel() {
    let Some(python) = interpreter() else { return };
    let copy = Copy::of_prefix(&python);
    let about = copy.prefix().join("pyvenv.cfg");
    let settings = fs::read_to_string(&about).unwrap();
    fs::remove_file(&about).unwrap();
    fs::write(about, settings.replace("packages = false", "packages = true")).unwrap();
    let sandbox = copy.sandbox().await;
    assert!(is_forked(&sandbox).await);
    let install = "import os, site
os.makedirs(site.USER_SITE)
open(site.USER_SITE + '/own.py', 'w').close()";
    assert!(sandbox.run_code(install).await.unwrap().success());
    sandbox.restart_context("default").await.unwrap();
    assert!(!is_forked(&sandbox).await);
    assert!(sandbox.run_code("import own").await.unwrap().success());
}

/// What is installed later is there for kernels that begin later.
#[tokio::test]
async fn an_upgrade_of_packages_is_another_interpreter() {
    let Some(python) = interpreter() else { return };
    let copy = Copy::of_prefix(&python);
    let backend = copy.backend();
    let version = "import ipykernel.kernelapp as app; getattr(app, 'upgraded', False)";
    for upgraded in ["False", "True"] {
        let sandbox = Sandbox::builder(Arc::<JupyterBackend>::clone(&backend)).create().await;
        let sandbox = sandbox.unwrap();
        assert!(is_forked(&sandbox).await);
        assert_eq!(sandbox.run_code(version).await.unwrap().text(), Some(upgraded));
        let module = copy.packages().join("ipykernel/kernelapp.py");
        let text = fs::read_to_string(&module).unwrap();
        fs::remove_file(&module).unwrap();
        fs::write(module, format!("{text}\nupgraded = True\n")).unwrap();
        // As the record of another version.
        fs::create_dir_all(copy.packages().join("ipykernel-99.dist-info")).unwrap();
    }
}

/// An environment with what another one has, of which files can be replaced.
struct Copy(TempDir);

impl Copy {
    fn of_prefix(python: &Path) -> Self {
        let theirs = prefix_of(python);
        let folder = tempfile::tempdir_in(theirs.parent().unwrap()).unwrap();
        let mut copy = Command::new("cp");
        copy.arg("-al").arg(theirs).arg(folder.path().join("env"));
        assert!(copy.status().unwrap().success());
        Self(folder)
    }

    fn prefix(&self) -> PathBuf {
        self.0.path().join("env")
    }

    fn packages(&self) -> PathBuf {
        let mut versions = fs::read_dir(self.prefix().join("lib")).unwrap();
        versions.next().unwrap().unwrap().path().join("site-packages")
    }

    fn backend(&self) -> Arc<JupyterBackend> {
        let mut config = JupyterConfig::default();
        config.python = Some(self.prefix().join("bin/python"));
        Arc::new(JupyterBackend::new(config))
    }

    async fn sandbox(&self) -> Sandbox {
        Sandbox::builder(self.backend()).create().await.unwrap()
    }
}
